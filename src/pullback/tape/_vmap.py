"""`vmap`: a callable of one item, run on a whole batch.

Inside, a batch is one Variable that stands for all items. A Function that has a vmap rule is
given the whole batch; any other runs for each item, those that wait at once, and those of
identical items once. What the tape records is a node an item, as a loop would record.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from graphlib import TopologicalSorter
from typing import Any, Literal, NamedTuple, NoReturn

from pullback.errors import (
    ArgumentError,
    ArgumentTypeError,
    DefinitionError,
    PullbackError,
    UnsupportedError,
)
from pullback.internal._arguments import checked
from pullback.internal._setting import setting
from pullback.tape._application import Application
from pullback.tape._concurrency import drive
from pullback.tape._definition import Definition
from pullback.tape._function import finished
from pullback.tape._layout import batch_in, find, replace
from pullback.tape._registry import space_of
from pullback.tape._spaces import Unstack, stack
from pullback.tape._variable import Variable, describe

__all__ = ["VmapInfo", "vmap"]

Randomness = Literal["error", "different", "same"]
Dims = Literal[0] | tuple[Literal[0] | None, ...] | None


class VmapInfo(NamedTuple):
    """What a vmap rule is told: how many items, and the randomness that `vmap` was given.

    Arguments:
        chosen: whether that was given, and is not the default.
        level: how many calls of `vmap` this one is inside of, itself counted.
    """

    batch_size: int
    randomness: str
    chosen: bool = True
    level: int = 1


class Batched(Variable):
    """All items of a batch, inside `vmap`."""

    __slots__ = ("info", "items")
    batched = True

    def __init__(self, items: Sequence[Variable], info: VmapInfo) -> None:
        super().__init__(None, items[0].role)
        self.items, self.info = list(items), info
        self._requires_grad = any(item._requires_grad for item in items)

    def _plain(self) -> NoReturn:
        raise UnsupportedError(
            "A decision was made on a value that is a batch inside vmap.",
            given=f"{len(self.items)} items, the first {describe(self.items[0])}",
            mend="Put the decision into the forward of a Function, which sees one item.",
        )

    @property
    def data(self) -> NoReturn:  # type: ignore[bad-override]
        """There is no one value: reading it is refused."""
        self._plain()

    @property
    def grad(self) -> Any:  # type: ignore[bad-override]
        """The gradients of the items, a batch themselves; None where none has one."""
        return _combined([item.grad for item in self.items], self.info)

    def _need_gradient(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{what} a batch inside vmap, which is no value of its own.", given=repr(self)[:80],
            mend="Do it with the items, before vmap.",
        )  # fmt: skip

    def __len__(self) -> int:
        sizes = sorted(map(len, self.items))
        if sizes[0] != sizes[-1]:
            raise _ragged(sizes)
        return sizes[0]

    def first(self) -> Any:
        """The data of one item; of a batch of batches, of one of those."""
        item = self.items[0]
        return item.first() if isinstance(item, Batched) else item._data

    def __iter__(self) -> Iterator[Any]:
        first = self.first()
        return iter(first) if isinstance(first, dict) else map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return f"Batched({self.items!r})"

    def detach(self) -> Variable:
        """The same batch without history."""
        return Batched([item.detach() for item in self.items], self.info)

    def _fresh(self) -> Variable:
        """The same batch of new leaves."""
        return Batched([item._fresh() for item in self.items], self.info)

    # What other files do with a batch among some arguments: the innermost one.

    @staticmethod
    async def each(definition: Definition, args: tuple[Any, ...]) -> Any:
        """Apply a Function to all items."""
        info, rows = Batched.rows(args)
        refused = info.randomness == "error" and (info.chosen or definition.random is True)
        if definition.random and refused:
            raise UnsupportedError(
                f"{definition.name} is random and was run inside vmap.",
                mend='Pass randomness="different" or "same" to vmap.',
            )
        if definition.vmap is not None:
            return await _by_rule(definition, info, args)
        return _combined(await _by_item(definition, info, rows), info)

    @staticmethod
    def rows(args: tuple[Any, ...]) -> tuple[VmapInfo, list[tuple[Any, ...]]]:
        """The innermost batch, and the arguments for each of its items."""
        inputs, _ = find(args)
        infos = [value.info for value in inputs if isinstance(value, Batched)]
        info = max(infos, key=lambda each: each.level)
        columns = [_items_of(value, info) or [value] * info.batch_size for value in inputs]
        return info, [replace(args, row) for row in zip(*columns, strict=True)]

    @staticmethod
    def lift(verb: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a verb for each item."""
        info, rows = Batched.rows(args)
        return _combined([verb(*row) for row in rows], info)


_level: ContextVar[int] = ContextVar("pullback.tape.vmap_level", default=0)


@checked
def vmap(
    func: Callable[..., Any],
    in_dims: Dims = 0,
    out_dims: Dims = 0,
    randomness: Randomness | None = None,
) -> Callable[..., Any]:
    """A callable that runs ``func`` for each item of its arguments.

    A batch is a list or tuple of items, or a Variable of one. Function calls that wait run at
    once, up to the limit of `concurrency`; identical items, of one role, share one run of a forward
    in the split form, and keep a gradient each.

    Arguments:
        func: takes one item of each argument, gives a Variable or a tuple of them.
        in_dims: 0 for an argument that is a batch, None for one that all items share.
        out_dims: 0 to give the outputs as a batch; None for an output that is no batch.
        randomness: whether Functions that declare ``random`` are refused (``"error"``), run for
            each item (``"different"``), or run once for identical items (``"same"``). If None,
            they are refused, and calls of models are run once for identical items.

    Returns:
        The callable; it gives Variables of lists.

    Raises:
        ArgumentError: the batches differ in size, or are empty.
        ArgumentTypeError: a dimension is not 0 or None.

    Example:
        >>> vmap(lambda x, y: x * y, in_dims=(0, None))([Variable(1.0), Variable(2.0)], 10.0)
        Variable([10.0, 20.0])
    """

    def batched(*args: Any) -> Any:
        dims = _for_each("in_dims", in_dims, args)
        rows = [None if dim is None else _items(arg) for arg, dim in zip(args, dims, strict=True)]
        sizes = {len(row) for row in rows if row is not None}
        if len(sizes) != 1 or 0 in sizes:
            raise ArgumentError(
                "The batched arguments are not of one size.",
                given=f"sizes {sorted(sizes)}", expected="at least one item, as many in each",
            )  # fmt: skip
        with setting(_level, _level.get() + 1) as level:
            info = VmapInfo(sizes.pop(), randomness or "error", randomness is not None, level)
            pairs = zip(args, rows, strict=True)
            result = func(*[arg if row is None else Batched(row, info) for arg, row in pairs])
        results = result if isinstance(result, tuple) else (result,)
        wanted = _for_each("out_dims", out_dims, results)
        found = tuple(_output(each, dim, info) for each, dim in zip(results, wanted, strict=True))
        return found if isinstance(result, tuple) else found[0]

    return batched


def _for_each(
    name: str, dims: Dims, values: Sequence[Any], error: type[PullbackError] = ArgumentError
) -> Sequence[Any]:
    found = dims if isinstance(dims, tuple | list) else (dims,) * len(values)
    if len(found) != len(values):
        raise error(
            f"There is not one of the {name} for each value.",
            given=f"{name}={dims!r}", expected=f"{len(values)} of them",
        )  # fmt: skip
    return found


def _items(arg: Any) -> list[Variable]:
    if isinstance(arg, Variable):
        data = arg.first() if isinstance(arg, Batched) else arg._data
        if isinstance(data, list | tuple):
            return list(Unstack.apply(arg))
    elif isinstance(arg, list | tuple):
        return [item if isinstance(item, Variable) else Variable(item) for item in arg]
    raise ArgumentTypeError(
        "A batch is a list or tuple, or a Variable of one.",
        given=describe(arg) if isinstance(arg, Variable) else type(arg).__name__,
        mend="Give an argument that all items share in_dims None.",
    )


def _items_of(value: Any, info: VmapInfo) -> list[Variable] | None:
    """The items of a value that is this very batch; None of any other."""
    mine = isinstance(value, Batched) and value.info.level == info.level
    return value.items if mine else None


def _output(value: Any, dim: Any, info: VmapInfo) -> Any:
    items = _items_of(value, info)
    if dim is None and items is not None:
        raise ArgumentError("out_dims is None for an output that is a batch.")
    if dim is None:
        return value
    if not isinstance(value, Variable):
        raise ArgumentTypeError(
            "The callable given to vmap returned something that is no Variable.",
            given=type(value).__name__,
        )
    return stack([value] * info.batch_size if items is None else items)


def _ragged(sizes: list[int]) -> UnsupportedError:
    return UnsupportedError(
        "Inside vmap the items differ in length.", given=f"{sizes[0]} to {sizes[-1]}",
        mend="Put what depends on it into the forward of a Function, which sees one item.",
    )  # fmt: skip


def _combined(results: list[Any], info: VmapInfo) -> Any:
    """One batch of the results of each item."""
    first = results[0]
    if isinstance(first, Variable):
        return Batched(results, info)
    if isinstance(first, tuple | list):
        if {len(result) for result in results} != {len(first)}:
            raise _ragged(sorted(map(len, results)))
        columns = zip(*results, strict=True)
        return type(first)(_combined(list(column), info) for column in columns)
    if all(result is first or result == first for result in results):
        return first
    raise UnsupportedError(
        "Inside vmap the items gave plain values that differ.", given=repr(results)[:80],
        mend="Return Variables.",
    )  # fmt: skip


async def _by_rule(definition: Definition, info: VmapInfo, args: tuple[Any, ...]) -> Any:
    """Run the Function's own vmap rule."""
    columns = [_items_of(arg, info) for arg in args]
    dims = tuple(None if items is None else 0 for items in columns)
    pairs = zip(args, columns, strict=True)
    values = [arg if items is None else stack(items) for arg, items in pairs]
    rule: Any = definition.vmap
    answer = rule(info, dims, *values)
    if "vmap" in definition.waiting:
        answer = await answer
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise DefinitionError(
            f"The vmap rule of {definition.name} did not return outputs and out_dims.",
            given=type(answer).__name__,
        )
    outputs, out_dims = answer
    if not isinstance(outputs, tuple):
        return _split(definition, info, outputs, out_dims)
    wanted = _for_each(f"out_dims of {definition.name}.vmap", out_dims, outputs, DefinitionError)
    return tuple(_split(definition, info, *pair) for pair in zip(outputs, wanted, strict=True))


def _split(definition: Definition, info: VmapInfo, output: Any, dim: Any) -> Any:
    if dim is None or not isinstance(output, Variable):
        return output
    items = _items(output)
    if dim != 0 or len(items) != info.batch_size:
        raise DefinitionError(
            f"The vmap rule of {definition.name} returned a batch of another size, or along "
            "another dimension.",
            given=f"{len(items)} along {dim!r}", expected=f"{info.batch_size} along 0",
        )  # fmt: skip
    return Batched(items, info)


async def _by_item(definition: Definition, info: VmapInfo, rows: list[tuple[Any, ...]]) -> Any:
    """Run the Function for each item: those that wait at once, of identical ones the first."""
    applications = [Application(definition, row) for row in rows]
    if any(batch_in(each.inputs) is not None for each in applications):
        return [await finished(each) for each in applications]
    runners: dict[Any, int] = {}  # by the key of an item, the number of the first such item
    firsts = [
        runners.setdefault(_key(each, number, info), number)
        for number, each in enumerate(applications)
    ]
    raws: dict[int, Any] = {}
    if definition.waiting:
        await drive(
            TopologicalSorter(dict.fromkeys(firsts, ())),
            lambda number: applications[number].aforward,
            lambda number, raw: raws.update({number: raw}),
        )
    else:
        raws = {number: applications[number].forward() for number in runners.values()}
    results = []
    for number, (application, first) in enumerate(zip(applications, firsts, strict=True)):
        raw = raws[first] if first == number else application.set_up(raws[first])
        results.append(application.finish(raw))
    return results


def _key(application: Application, number: int, info: VmapInfo) -> Any:
    """Equal for items that can share one run of forward, else the item's own."""
    definition = application.definition
    alone = definition.random and info.randomness == "different"
    if alone or definition.trusted or (application.recorded and not definition.setup_context):
        return number
    values = [
        (
            value._data if space_of(value._data).plain else id(value),
            value.role * definition.reads_roles,
        )
        for value in application.inputs
    ]
    # The zeros of a float are equal, and two values: only its digits tell them apart.
    return tuple((type(v), float.hex(v) if isinstance(v, float) else v, role) for v, role in values)
