"""`Optimizer`: parameters in groups, their past versions, and their measured scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import Natural, checked, reading
from pullback.internal._text import shown
from pullback.tape import Variable, no_grad
from pullback.text._evaluation import finite
from pullback.text._failure import attempted

__all__ = ["Optimizer", "Version"]


@checked
@dataclass(frozen=True)
class Version:
    """A value that a parameter has had, what was said of it, and what was measured with it."""

    value: str
    feedback: tuple[str, ...] = ()
    score: float | None = None

    def __post_init__(self) -> None:
        if self.score is not None:
            finite(self.score, "A score")


@checked
class Optimizer:
    """Changes texts from the feedback that they have collected; subclasses write `step`.

    Arguments:
        params: the parameters, or groups of them: dicts with ``"params"`` and options of their own.
        defaults: the options of groups that do not give their own.

    Attributes:
        param_groups: a list of dicts.
        versions: for each parameter, in the order of the groups, its versions; the last is the
            one that it has.

    Raises:
        ArgumentError: there is no parameter, one is there twice, or an option is unknown.
    """

    measure: Any = None
    """What a proposal is measured by, of an optimizer that does."""

    final: Any = None
    """What start and end are measured by."""

    outcomes: Sequence[Any] = ()
    """What became of each proposal that was measured."""

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[dict[str, Any]] = []
        self.versions: list[list[Version]] = []
        given = list(params)
        grouped = bool(given) and isinstance(given[0], Mapping)
        for group in given if grouped else [{"params": given}]:
            self.add_param_group(group)
        if not self.parameters():
            raise ArgumentError("An optimizer was given no parameter.")

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group of parameters with options of its own.

        Raises:
            ArgumentError: see `Optimizer`.
        """
        if "params" not in group:
            raise ArgumentTypeError("A group is a dict with 'params'.", given=repr(group)[:80])
        unknown = group.keys() - self.defaults.keys() - {"params"}
        if unknown:
            raise ArgumentError(
                f"A group has an unknown option: {min(unknown)!r}.",
                expected=", ".join(self.defaults),
            )
        params = group["params"]
        chosen = [params] if isinstance(params, Variable) else list(params)
        before = self.parameters()
        for number, parameter in enumerate(chosen):
            leaf = isinstance(parameter, Variable) and parameter.is_leaf
            if not leaf or not isinstance(parameter.data, str):
                raise ArgumentTypeError(
                    "An optimizer changes leaves, and this one texts.", given=shown(parameter),
                    expected="a text Parameter",
                )  # fmt: skip
            if any(parameter is each for each in [*before, *chosen[:number]]):
                raise ArgumentError("A parameter is there twice.", given=repr(parameter)[:80])
        self.param_groups.append({**self.defaults, **group, "params": chosen})
        self.versions += [[Version(parameter.data)] for parameter in chosen]

    def parameters(self) -> list[Variable]:
        """All parameters, in the order of the groups."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Forget the feedback of every parameter."""
        for parameter in self.parameters():
            parameter.grad = None

    def step(self) -> None:
        """Change the parameters."""
        raise ArgumentTypeError(f"{type(self).__name__} has no step.", mend="def step(self): ...")

    def expect(self, proposals: Natural | None) -> None:
        """Say how many proposals there will be, where nobody has."""

    def finish(self) -> Any:
        """What start and end are on the final split; None if there is none."""

    def attempt(self) -> str:
        """Make a step; what became of it, in words: where a model fails, nothing was proposed."""
        with attempted() as failed:
            self.step()
        return f"nothing was proposed: {failed[0].cause}" if failed else ""

    def record(self, score: float) -> None:
        """Say what was measured with the versions that the parameters have now."""
        number = finite(score, "A score")
        self._follow()
        for versions in self.versions:
            versions[-1] = replace(versions[-1], score=number)

    def values(self) -> list[str]:
        """The texts that the parameters have now."""
        return [parameter.data for parameter in self.parameters()]

    def set_values(self, values: Sequence[str]) -> None:
        """Give every parameter a text."""
        parameters = self.parameters()
        if len(values) != len(parameters):
            raise ArgumentError(
                "There is not one value for each parameter.",
                given=str(len(values)), expected=str(len(parameters)),
            )  # fmt: skip
        with no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data = value
        self._follow()

    def _follow(self) -> None:
        """Let the last version be the one that each parameter has, whoever changed it."""
        for parameter, versions in zip(self.parameters(), self.versions, strict=True):
            if versions[-1].value != parameter.data:
                known = [each for each in versions if each.value == parameter.data]
                versions[:] = [each for each in versions if each.value != parameter.data]
                versions.append(known[-1] if known else Version(parameter.data))

    def state_dict(self) -> dict[str, Any]:
        """The texts and their past versions, plain JSON."""
        self._follow()
        return {"versions": [[asdict(version) for version in each] for each in self.versions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave, the texts too.

        Raises:
            ArgumentError: it belongs to other parameters.
        """
        with reading("state of an optimizer", state):
            versions = [
                [Version(v["value"], tuple(v["feedback"]), v["score"]) for v in each]
                for each in state["versions"]
            ]
        if len(versions) != len(self.versions) or not all(versions):
            raise ArgumentError(
                "The state belongs to other parameters.", given=f"{len(versions)} of them",
                expected=str(len(self.versions)),
            )  # fmt: skip
        self.set_values([each[-1].value for each in versions])
        self.versions[:] = versions
