"""`Recipe`: which formats the products of each module are simulated in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tracking.formats._round import Format, Named, find_format

__all__ = ["ROLES", "ProductFormats", "Recipe", "Role"]

Role = Literal["weight", "activation", "gradient"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class ProductFormats:
    """The formats of what a product multiplies, and of the gradient that comes back to it.

    Arguments:
        weight: of factors that are parameters, or the weight of a layer; ``None`` leaves them.
        activation: of all other factors.
        gradient: of the gradient of the result.

    Raises:
        ArgumentError: an unknown format.

    Example:
        >>> from pullback.tracking.formats import ProductFormats
        >>> str(ProductFormats(weight="MXFP4", activation="E4M3").weight)
        'MXFP4'
    """

    weight: Named | None = None
    activation: Named | None = None
    gradient: Named | None = None

    def __post_init__(self) -> None:
        for role in ROLES:
            named = getattr(self, role)
            object.__setattr__(self, role, None if named is None else find_format(named))

    def __repr__(self) -> str:
        return (
            f"ProductFormats(weight={self.weight}, activation={self.activation}, "
            f"gradient={self.gradient})"
        )

    def of(self, role: Role) -> Format | None:
        """The format of one role."""
        return getattr(self, role)

    @property
    def follows_dimension(self) -> bool:
        """Whether a scale belongs to a channel or a block, which have a direction."""
        return any(each.per not in ("value", "tensor") for each in self._given)

    @property
    def remembers(self) -> bool:
        """Whether a scale comes of what was seen before."""
        return any(each.history for each in self._given)

    @property
    def _given(self) -> list[Format]:
        return [each for each in map(self.of, ROLES) if each is not None]


class Recipe:
    """Formats by the names of modules; the first rule that fits decides, and holds for all within.

    A module that stands in the model under several names needs the same formats by each of them.

    Arguments:
        rules: for each pattern of names, such as ``"head"``, ``"encoder.*"`` or ``"*"``, the
            formats, or ``None`` to leave the products as they are. What no rule fits is left.

    Raises:
        ArgumentTypeError: rules of another type.

    Example:
        >>> from pullback.tracking.formats import ProductFormats, Recipe
        >>> recipe = Recipe({"head": None, "*": ProductFormats(weight="int4")})
        >>> recipe.find("head.0"), str(recipe.find("body.linear").weight)
        (None, 'int4')
    """

    def __init__(self, rules: Mapping[str, ProductFormats | None]) -> None:
        right = isinstance(rules, Mapping) and all(
            isinstance(name, str) and (formats is None or isinstance(formats, ProductFormats))
            for name, formats in rules.items()
        )
        if not right or not rules:
            raise ArgumentTypeError(
                "A recipe gives formats by the names of modules.",
                given=repr(rules),
                expected='{"head": None, "*": ProductFormats(weight=..., activation=...)}',
            )
        self.rules = dict(rules)

    def find(self, name: str) -> ProductFormats | None:
        """The formats for a module; the whole model's name is ``""``."""
        for pattern, formats in self.rules.items():
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*"):
                return formats
        return None

    @property
    def remembers(self) -> bool:
        """Whether a scale comes of what was seen before."""
        return any(formats is not None and formats.remembers for formats in self.rules.values())

    def check(self, names: Iterable[str]) -> None:
        """Refuse a pattern that fits none of a model's modules.

        Raises:
            ArgumentError: there is one.
        """
        known = list(names)
        for pattern in self.rules:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise ArgumentError(
                    "A rule of the recipe fits no module.",
                    given=repr(pattern),
                    expected="patterns that match a name in model.named_modules(): "
                    + ", ".join(name for name in known[:8] if name),
                )

    def __repr__(self) -> str:
        return f"Recipe({self.rules!r})"
