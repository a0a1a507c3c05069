"""`vmap`: a callable of one item, run on a whole batch.

Inside, a batch is one Variable that stands for all items. A Function that has a vmap rule is
given the whole batch; any other runs for each item, those that wait at once, and those of
identical items once. What the tape records is a node an item, as a loop would record.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from graphlib import TopologicalSorter
from typing import Any, Literal, NamedTuple, NoReturn

from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError, UnsupportedError
from pullback.internal._arguments import checked
from pullback.internal._setting import setting
from pullback.tape import _layout
from pullback.tape._concurrency import drive
from pullback.tape._definition import Definition
from pullback.tape._application import Application
from pullback.tape._function import aapply
from pullback.tape._registry import space_of
from pullback.tape._structures import Unstack, stack
from pullback.tape._variable import Variable, describe

__all__ = ["VmapInfo", "vmap"]

Randomness = Literal["error", "different", "same"]
Dims = Literal[0] | tuple[Literal[0] | None, ...] | None


class VmapInfo(NamedTuple):
    """What a vmap rule is told.

    Arguments:
        batch_size: the number of items.
        randomness: ``"error"``, ``"different"`` or ``"same"``, as `vmap` was given.
        chosen: whether it was given, and is not the default.
    """

    batch_size: int
    randomness: str
    chosen: bool = True


class Batched(Variable):
    """All items of a batch, inside `vmap`."""

    __slots__ = ("info", "items", "level")
    batched = True

    def __init__(self, items: Sequence[Variable], level: int, info: VmapInfo) -> None:
        super().__init__(None, items[0].role)
        self.items, self.level, self.info = list(items), level, info
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

    def __len__(self) -> int:
        sizes = sorted(map(len, self.items))
        if sizes[0] != sizes[-1]:
            raise _ragged(sizes)
        return sizes[0]

    def __iter__(self) -> Iterator[Any]:
        first = self.items[0]._data
        return iter(first) if isinstance(first, dict) else map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return f"Batched({self.items!r})"

    def detach(self) -> Variable:
        """The same batch without history."""
        return Batched([item.detach() for item in self.items], self.level, self.info)

    def _fresh(self) -> Variable:
        """The same batch of new leaves."""
        return Batched([item._fresh() for item in self.items], self.level, self.info)

    async def each(self, definition: Definition, args: tuple[Any, ...]) -> Any:
        """Apply a Function to all items of the batches among its arguments."""
        lanes = _Lanes(definition, args)
        return await (lanes.each() if definition.vmap is None else lanes.whole())

    @staticmethod
    def rows(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The arguments for each item of the innermost batches among them."""
        return _Rows(args).rows

    @staticmethod
    def lift(verb: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run a verb for each item of the innermost batches among its arguments."""
        lanes = _Rows(args)
        return lanes.combine([verb(*row) for row in lanes.rows])


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
    once, up to the limit of `concurrency`; identical items share one run of a forward in the
    split form, and keep a gradient each.

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
        info = VmapInfo(sizes.pop(), randomness or "error", randomness is not None)
        with setting(_level, _level.get() + 1) as level:
            result = func(*[
                arg if row is None else Batched(row, level, info)
                for arg, row in zip(args, rows, strict=True)
            ])  # fmt: skip
        results = result if isinstance(result, tuple) else (result,)
        wanted = _for_each("out_dims", out_dims, results)
        found = tuple(
            _output(each, dim, level, info) for each, dim in zip(results, wanted, strict=True)
        )
        return found if isinstance(result, tuple) else found[0]

    return batched


def _for_each(name: str, dims: Dims, values: Sequence[Any]) -> Sequence[Any]:
    found = dims if isinstance(dims, tuple | list) else (dims,) * len(values)
    if len(found) != len(values):
        raise ArgumentError(
            f"There is not one of the {name} for each value.",
            given=f"{name}={dims!r}", expected=f"{len(values)} of them",
        )  # fmt: skip
    return found


def _items(arg: Any) -> list[Variable]:
    if isinstance(arg, Variable):
        data = arg.items[0]._data if isinstance(arg, Batched) else arg._data
        if isinstance(data, list | tuple):
            return list(Unstack.apply(arg))
    elif isinstance(arg, list | tuple):
        return [item if isinstance(item, Variable) else Variable(item) for item in arg]
    raise ArgumentTypeError(
        "A batch is a list or tuple, or a Variable of one.",
        given=describe(arg) if isinstance(arg, Variable) else type(arg).__name__,
        mend="Give an argument that all items share in_dims None.",
    )


def _output(value: Any, dim: Any, level: int, info: VmapInfo) -> Any:
    mine = isinstance(value, Batched) and value.level == level
    if dim is not None:
        if not isinstance(value, Variable):
            raise ArgumentTypeError(
                "The callable given to vmap returned something that is no Variable.",
                given=type(value).__name__,
            )
        return stack(
            value.items if isinstance(value, Batched) and mine else [value] * info.batch_size
        )
    if mine:
        raise ArgumentError("out_dims is None for an output that is a batch.")
    return value


def _ragged(sizes: list[int]) -> UnsupportedError:
    return UnsupportedError(
        "Inside vmap the items differ in length.", given=f"{sizes[0]} to {sizes[-1]}",
        mend="Put what depends on it into the forward of a Function, which sees one item.",
    )  # fmt: skip


class _Rows:
    """The arguments of a call on a batch, for each item of the innermost."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        inputs, _ = _layout.find(args)
        batches = [value for value in inputs if isinstance(value, Batched)]
        self.level = max(batch.level for batch in batches)
        self.info = next(batch.info for batch in batches if batch.level == self.level)
        items = [
            value.items if isinstance(value, Batched) and value.level == self.level else None
            for value in inputs
        ]
        self.rows = [
            _layout.replace(args, [
                value if row is None else row[index]
                for value, row in zip(inputs, items, strict=True)
            ])
            for index in range(self.info.batch_size)
        ]  # fmt: skip

    def combine(self, results: list[Any]) -> Any:
        """One batch of the results of each item."""
        first = results[0]
        if isinstance(first, Variable):
            return Batched(results, self.level, self.info)
        if isinstance(first, tuple | list):
            if {len(result) for result in results} != {len(first)}:
                raise _ragged(sorted(map(len, results)))
            columns = zip(*results, strict=True)
            return type(first)(self.combine(list(column)) for column in columns)
        if all(result is first or result == first for result in results):
            return first
        raise UnsupportedError(
            "Inside vmap the items gave plain values that differ.", given=repr(results)[:80],
            mend="Return Variables.",
        )  # fmt: skip


class _Lanes(_Rows):
    """One application on a batch."""

    def __init__(self, definition: Definition, args: tuple[Any, ...]) -> None:
        super().__init__(args)
        self.definition, self.args = definition, args
        refused = self.info.randomness == "error"
        if definition.random and refused and (self.info.chosen or definition.random is True):
            raise UnsupportedError(
                f"{definition.name} is random and was run inside vmap.",
                mend='Pass randomness="different" or "same" to vmap.',
            )

    async def whole(self) -> Any:
        """Run the Function's own vmap rule."""
        dims, values = [], []
        for arg in self.args:
            mine = isinstance(arg, Batched) and arg.level == self.level
            dims.append(0 if mine else None)
            values.append(stack(arg.items) if mine else arg)
        rule: Any = self.definition.vmap
        answer = rule(self.info, tuple(dims), *values)
        if "vmap" in self.definition.asynchronous:
            answer = await answer
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise DefinitionError(
                f"The vmap rule of {self.definition.name} did not return outputs and out_dims.",
                given=type(answer).__name__,
            )
        outputs, out_dims = answer
        if not isinstance(outputs, tuple):
            return self._split(outputs, out_dims)
        wanted = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(outputs)
        if len(wanted) != len(outputs):
            raise DefinitionError(
                f"The vmap rule of {self.definition.name} returned not one out_dim an output.",
                given=f"{len(wanted)} for {len(outputs)} outputs",
            )
        return tuple(self._split(*pair) for pair in zip(outputs, wanted, strict=True))

    def _split(self, output: Any, dim: Any) -> Any:
        if dim is None or not isinstance(output, Variable):
            return output
        items = _items(output)
        if dim != 0 or len(items) != self.info.batch_size:
            raise DefinitionError(
                f"The vmap rule of {self.definition.name} returned a batch of another size, or "
                "along another dimension.",
                given=f"{len(items)} along {dim!r}", expected=f"{self.info.batch_size} along 0",
            )  # fmt: skip
        return Batched(items, self.level, self.info)

    async def each(self) -> Any:
        """Run the Function for each item: those that wait at once, of identical ones the first."""
        definition = self.definition
        applications = [Application(definition, row) for row in self.rows]
        if any(_layout.batch_in(each.inputs) is not None for each in applications):
            return self.combine([await aapply(definition, row) for row in self.rows])
        found: dict[Any, int] = {}
        keys = [self._key(application, n) for n, application in enumerate(applications)]
        first = [found.setdefault(key, n) for n, key in enumerate(keys)]
        raws: dict[int, Any] = {}
        if definition.concurrent:
            await drive(
                TopologicalSorter(dict.fromkeys(first, ())),
                lambda number: applications[number].aforward,
                lambda number, raw: raws.update({number: raw}),
            )
        else:
            raws = {number: applications[number].forward() for number in dict.fromkeys(first)}
        results = []
        for number, (application, runner) in enumerate(zip(applications, first, strict=True)):
            raw = raws[runner] if runner == number else application.set_up(raws[runner])
            results.append(application.finish(raw))
        return self.combine(results)

    def _key(self, application: Application, number: int) -> Any:
        """Equal for items that can share one run of forward, else the item's own."""
        definition = self.definition
        alone = definition.random and self.info.randomness == "different"
        if alone or definition.trusted or (application.recorded and not definition.setup_context):
            return number
        values = [
            value._data if space_of(value._data).plain else id(value)
            for value in application.inputs
        ]
        return tuple((type(value), value) for value in values)
