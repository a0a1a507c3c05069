"""`Arguments`: the inputs of a check, with a path to every tensor and fresh copies for each run."""

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from typing import Any

import torch

from pullback.conformance.inputs._held import tensors_within
from pullback.conformance.inputs._tree import leaves, replace, tensors, walk
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._generators import PutBack, rewinds
from pullback.internal.torch import FakeTensor, pytree
from pullback.recording.codec import EXPRESSION, TENSORS

__all__ = [
    "Arguments", "is_composed", "is_continuous", "is_uniform", "refuse_data", "without_nan",
]  # fmt: skip


_CODES = {getattr(torch, name, None) for name in ("float8_e8m0fnu", "float4_e2m1fn_x2")}


def is_continuous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is floating or complex, so that a derivative with respect to it makes sense.

    One that its class puts together from others, a quantised weight for example, has no numbers of
    its own that could move a little; nor have scales without a zero, and two numbers in a byte.

    Example:
        >>> is_continuous(torch.ones(2)), is_continuous(torch.ones(2, dtype=torch.int64))
        (True, False)
    """
    moves = tensor.is_floating_point() and tensor.dtype not in _CODES
    return (moves or tensor.is_complex()) and not is_composed(tensor)


def is_uniform(tensor: torch.Tensor) -> bool:
    """Whether all entries are one number, so that it may hide what is done with it: zero or one.

    Example:
        >>> is_uniform(torch.ones(2)), is_uniform(torch.arange(2.0)), is_uniform(torch.ones(()))
        (True, False, False)
    """
    if not tensor.numel() or not is_continuous(tensor):
        return False
    alike = bool((tensor == tensor.reshape(-1)[0]).all())
    return alike and (tensor.numel() > 1 or not tensor.any())


def is_composed(tensor: torch.Tensor) -> bool:
    """Whether the class of a tensor puts it together from others, and says which operations it has.

    A copy of one may be another: made of numbers that are rounded again.
    """
    return hasattr(tensor, "__tensor_flatten__")


@dataclass(frozen=True, eq=False)
class Arguments:
    """Positional and keyword arguments, never handed out themselves, only as copies.

    Arguments:
        args: positional arguments, possibly nested.
        kwargs: keyword arguments, possibly nested.
        values: every tensor in them, detached copies, in order.
        paths: the path of each tensor, for example ``"args[0]['w']"``.
        differentiable: the positions in ``values`` that are differentiated.
        declared: whether the caller chose them by ``requires_grad``.
        detached: hand out copies that are not leaves, for Functions that change an input in place.
        generators: put the generators that draw for it back to the state they came with.
        owned: the tensors, by position, that belong to a module, callable or object among the
            arguments, which reaches them by itself, or are of a class of their own: handed out as
            they are, and constants to all that does not ask for them.
        learnt: of these the leaves that need a gradient, by position, with the numbers that they
            came with: they move where they lie, and are put back.
        beside: the positions of values of sparse tensors that need a gradient beside others: torch
            has no second derivative of them.
        recorded: how a script has the call again, as source; an empty text where it has not.
        modules_in: the dtype in which copies of its modules are handed out.
        judged: what was found of derivatives here, which several clauses ask for; none of others.

    Example:
        >>> Arguments.of((torch.ones(2), {"w": torch.ones(3)}, 0.5)).paths
        ('args[0]', "args[1]['w']")
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]
    differentiable: tuple[int, ...]
    declared: bool
    generators: tuple[PutBack, ...] = ()
    detached: bool = False
    owned: Mapping[int, torch.Tensor] = field(default_factory=dict)
    learnt: Mapping[int, torch.Tensor] = field(default_factory=dict)
    beside: tuple[int, ...] = ()
    recorded: str = ""
    modules_in: torch.dtype | None = None
    judged: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> "Arguments":
        """Take arguments apart.

        Arguments:
            args: positional arguments; tensors that require a gradient are differentiated, or
                every floating tensor when none does.
            kwargs: keyword arguments.

        Returns:
            The arguments with the path of each tensor.

        Raises:
            ArgumentTypeError: ``kwargs`` is not a mapping of names.

        Example:
            >>> Arguments.of((torch.ones(2, requires_grad=True), torch.ones(2))).differentiable
            (0,)
        """
        named = {} if kwargs is None else kwargs
        if not isinstance(named, Mapping) or not all(isinstance(key, str) for key in named):
            raise ArgumentTypeError(
                "The keyword arguments are not a mapping of names.", given=f"kwargs={kwargs!r}",
                expected="a dict such as {'scale': 0.5}",
            )  # fmt: skip
        found = [*walk(tuple(args), "args"), *walk(dict(named), "kwargs")]
        pairs = [(path, leaf) for path, leaf in found if isinstance(leaf, torch.Tensor)]
        # What a module, a closure or an object among the arguments reaches by itself.
        others = [leaf for _, leaf in found if not isinstance(leaf, torch.Tensor)]
        reached = {id(tensor) for tensor, _ in tensors_within(others)}
        owned = {
            k: leaf for k, (_, leaf) in enumerate(pairs) if id(leaf) in reached or _is_other(leaf)
        }
        free = [(k, leaf) for k, (_, leaf) in enumerate(pairs) if k not in owned]
        asked = [k for k, leaf in free if leaf.requires_grad]
        sparse = {k for k, (path, _) in enumerate(pairs) if path.endswith(".values()")}
        chosen = [k for k in asked if k not in sparse] or asked
        every = [k for k, leaf in free if is_continuous(leaf) and (asked or k not in sparse)]
        generators = [rewinds(leaf) for _, leaf in found]
        with torch.inference_mode(False):
            copies = tuple(leaf.detach().clone() for _, leaf in pairs)
        return cls(
            tuple(args),
            dict(named),
            copies,
            tuple(path for path, _ in pairs),
            tuple(chosen or every),
            bool(chosen),
            tuple(put_back for put_back in generators if put_back is not None),
            owned=owned,
            learnt={
                k: copies[k] for k, t in owned.items()
                if t.requires_grad and t.is_leaf and is_continuous(t)
            },
            beside=tuple(k for k in asked if k not in chosen),
            recorded=getattr(kwargs, EXPRESSION, ""),
        )  # fmt: skip

    def others(self) -> list[Any]:
        """What is no tensor among them: numbers, callables, objects."""
        every = leaves((self.args, dict(self.kwargs)))
        return [leaf for leaf in every if not isinstance(leaf, torch.Tensor)]

    def source(self, position: int) -> str:
        """The expression by which a script finds a tensor in a recording, or an empty text.

        Of the numbers that it has now.
        """
        value, given = self.values[position], tensors((self.args, dict(self.kwargs)))[position]
        taken = self.taken(self.paths[position])
        text = getattr(given, EXPRESSION, "") or (taken and f"{taken}.detach().clone()")
        if not text or given.shape != value.shape:
            return ""
        same = torch.equal(given.detach().to(value.dtype), value)
        return (text if given.dtype == value.dtype else f"{text}.to({value.dtype})") * same

    def taken(self, path: str) -> str:
        """The expression by which a script takes an argument from the call as it was recorded.

        An empty text where it has no such call.
        """
        there = self.recorded and path.startswith("args") and not path.endswith(".values()")
        return f"recorded{path.removeprefix('args')}" if there else ""

    def nested(self, position: int) -> bool:
        """Whether a tensor lies inside a container or is a keyword argument."""
        path = self.paths[position].removesuffix(".values()")
        return path.count("[") > 1 or "." in path or path.startswith("kwargs")

    @property
    def entries(self) -> int:
        """How many numbers all tensors hold together."""
        return sum(value.numel() for value in self.values)

    def points(self) -> list[torch.Tensor]:
        """The tensors that are differentiated, without history."""
        return [self.values[k] for k in self.differentiable]

    def names(self) -> list[str]:
        """The path of each tensor that is differentiated."""
        return [self.paths[k] for k in self.differentiable]

    def build(self, points: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh arguments with ``points`` as the differentiated tensors.

        Arguments:
            points: one tensor for each differentiated one; handed over as they are.

        Returns:
            Positional and keyword arguments; every other tensor is a copy, and every generator
            is back in the state it came with.
        """
        given = dict(zip(self.differentiable, points, strict=True))
        if self.detached:
            given = {k: point.clone() for k, point in given.items()}
        self.put_back(given)
        given = {**self.owned, **given}
        items = iter(
            [given[k] if k in given else value.clone() for k, value in enumerate(self.values)]
        )
        for put_back in self.generators:
            put_back()
        return replace(self.args, items), replace(dict(self.kwargs), items)

    def leaves(self, points: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Leaves with the numbers of ``points`` for what is differentiated.

        Fresh ones, but for what is learnt elsewhere: its owner reads its own.
        """
        made = []
        for k, point in zip(self.differentiable, points, strict=True):
            if k not in self.learnt:
                made.append(point.detach().clone().requires_grad_())
                continue
            self.owned[k].data.copy_(point.detach())  # seen by no version: nothing of it is saved
            made.append(self.owned[k])
        return made

    def put_back(self, moved: Container[int] = ()) -> None:
        """Give what is learnt elsewhere the numbers that it came with, all but some of it."""
        for k, came in self.learnt.items():  # where it is compiled, too
            if k not in moved and not torch.equal(self.owned[k], came):
                self.owned[k].data.copy_(came)

    def cast(self, dtype: torch.dtype) -> "Arguments":
        """The same arguments with every floating tensor in ``dtype`` (complex in its partner).

        What is handed out as it is has the dtype that it has.
        """
        partner = torch.complex64 if dtype == torch.float32 else torch.complex128
        moving = (k for k, v in enumerate(self.values) if k not in self.owned and is_continuous(v))
        return self.changed(moving, lambda v: v.to(partner if v.is_complex() else dtype))

    def leaves_of(self, kind: type) -> dict[int, Any]:
        """The leaves of a type that are no tensors, by number."""
        every = pytree.tree_leaves((self.args, dict(self.kwargs)))
        return {k: leaf for k, leaf in enumerate(every) if isinstance(leaf, kind)}

    def with_leaves(self, made: Mapping[int, Any]) -> "Arguments":
        """The same arguments with others of the leaves that are no tensors, by number."""
        every, form = pytree.tree_flatten((self.args, dict(self.kwargs)))
        args, kwargs = pytree.tree_unflatten(
            [made.get(k, leaf) for k, leaf in enumerate(every)], form
        )
        return with_fields(self, args=args, kwargs=kwargs)

    def with_modules(self, dtype: torch.dtype) -> "Arguments | None":
        """The same arguments with copies of their modules in ``dtype``.

        ``None`` where there are none, or where one is handed its own tensors.
        """
        modules = self.leaves_of(torch.nn.Module)
        if self.owned or not modules:
            return None
        made = {k: module.to(dtype) for k, module in copy.deepcopy(modules).items()}
        return with_fields(self.with_leaves(made), modules_in=dtype)

    def with_values(self, values: Sequence[torch.Tensor]) -> "Arguments":
        """The same arguments with other tensors."""
        return with_fields(self, values=tuple(values))

    def with_some(self, made: Mapping[int, torch.Tensor]) -> "Arguments":
        """The same arguments with other tensors at some positions."""
        return self.with_values([made.get(k, value) for k, value in enumerate(self.values)])

    def changed(
        self, positions: Iterable[int], change: Callable[[torch.Tensor], torch.Tensor]
    ) -> "Arguments":
        """The same arguments with the tensors at some positions changed."""
        return self.with_some({k: change(self.values[k]) for k in positions})

    def with_numbers(self, change: Callable[[float], float]) -> "Arguments":
        """The same arguments with other floating-point numbers, those within tensors aside."""
        every = self.leaves_of(float).items()
        return self.with_leaves({k: change(n) for k, n in every if type(n) is float})

    def with_other_integers(self) -> "Arguments":
        """The same arguments with other indices, lengths and masks.

        They are as good: none is larger than one that was given. Nor are they the same ones in
        another order, of which the counts would be the same.
        """
        whole = (
            k for k, v in enumerate(self.values) if not (v.is_floating_point() or v.is_complex())
        )
        # Of unsigned ones torch has no quotient.
        return self.changed(
            whole, lambda v: ~v if v.dtype is torch.bool else (v.long() // 2).to(v.dtype)
        )

    def with_counts(self, other: Callable[[int], int]) -> Iterator["Arguments"]:
        """The same arguments with one integer as another one, for each that is no tensor."""
        for k, number in self.leaves_of(int).items():
            if type(number) is int and other(number) != number:
                yield self.with_leaves({k: other(number)})

    def with_points(self, points: Sequence[torch.Tensor]) -> "Arguments":
        """The same arguments with others that are differentiated."""
        return self.with_some(dict(zip(self.differentiable, points, strict=True)))

    def with_differentiable(
        self, positions: Sequence[int], *, detached: bool | None = None
    ) -> "Arguments":
        """The same arguments with other tensors differentiated."""
        kept = self.detached if detached is None else detached
        return with_fields(self, differentiable=tuple(positions), detached=kept)


def _is_other(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds more than its numbers, as a quantised weight does."""
    return type(tensor) not in TENSORS and (not tensor.requires_grad or is_composed(tensor))


def refuse_data(arguments: Arguments) -> None:
    """Refuse tensors that have no numbers to move and compare.

    Raises:
        ArgumentError: there is such a tensor.
    """
    for path, value in zip(arguments.paths, arguments.values, strict=True):
        if kind := _unusual(value):
            raise ArgumentError(
                "An input cannot be checked.",
                given=f"{path} is {kind}",
                expected="tensors that hold numbers",
                mend="Check the Function on dense tensors, or wrap it in a function that makes "
                "such a tensor of dense ones.",
            )


def _unusual(value: torch.Tensor) -> str:
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return f"a tensor with layout {value.layout}"
    if value.is_meta or value.device.type == "meta":
        return "a tensor without data, on the device meta"
    if isinstance(value, FakeTensor):
        return "a fake tensor"
    return "a quantised tensor" if value.is_quantized else ""


def without_nan(arguments: Arguments) -> tuple[Arguments, str]:
    """The arguments with other entries of the same tensor in place of NaN.

    A NaN makes every number that it reaches NaN, right or wrong: nothing is judged there.

    Returns:
        The arguments, and what was not judged; an empty text where they hold no NaN.

    Example:
        >>> found, said = without_nan(Arguments.of((torch.tensor([1.0, float("nan")]),)))
        >>> found.values[0].tolist(), said
        ([1.0, 1.0], 'not judged: 1 of 2 entries of args[0] are NaN, replaced by others of it')
    """
    filled, said = dict[int, torch.Tensor](), list[str]()
    for k, (path, value) in enumerate(zip(arguments.paths, arguments.values, strict=True)):
        bad = value.isnan() if is_continuous(value) and k not in arguments.owned else None
        if bad is None or not bool(bad.any()):
            continue
        filled[k] = _filled(value, bad)
        said.append(f"{int(bad.sum())} of {value.numel()} entries of {path} are NaN")
    if not said:
        return arguments, ""
    return arguments.with_some(filled), f"not judged: {', '.join(said)}, replaced by others of it"


def _filled(value: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    whole, filled, count = value[~bad], value.clone(), int(bad.sum())
    if not whole.numel():
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        whole = (0.5 + drawn).to(value)
    filled[bad] = whole.repeat(-(-count // len(whole)))[:count]
    return filled
