"""Batching where torch's generated rule does not serve: the author's rule, or item by item."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never

import torch

from pullback.errors import DefinitionError, PullbackError, UnsupportedError
from pullback.internal.torch import (
    BatchInterpreter,
    TransformType,
    add_batch_dim,
    add_legacy_batch_dim,
    get_interpreter_stack,
    is_batchedtensor,
    is_raised_by_tracing,
    legacy_batch_level,
    maybe_get_level,
    peek_interpreter_stack,
    pytree,
    remove_legacy_batch_dim,
    restore_vmap,
    versions_of,
)
from pullback.tensor.call._call import Call
from pullback.tensor.call._context import Context
from pullback.tensor.call._definition import Definition
from pullback.tensor.values import _random
from pullback.tensor.values._errors import Raised, named
from pullback.tensor.values._functions import tensors_in
from pullback.tensor.values._levels import are_batched
from pullback.tensor.values._structure import HOLE, flatten, unflatten
from pullback.tensor.watch._memory import Factories, Mutations

__all__ = ["batch_by_rule", "batched", "batching", "gradients_by_item", "share_batch"]

_MEND = "Write the rules in torch operations, or declare batching = 'loop', or write vmap."

_WRITTEN = 16  # tensors that a rule makes and writes to, found by one more run each
_MANY = 100  # items of a batch that are not run one by one without a word


def batch_by_rule(info: Any, in_dims: tuple[Any, ...], call: Call, *tensors: torch.Tensor) -> Any:
    """Run the author's vmap rule, then setup_context on one level of batching."""
    definition = call.definition
    if definition.vmap is None or definition.setup_context is None:
        raise DefinitionError(f"{definition.name} has no vmap rule.")
    setup_context = definition.setup_context
    values = unflatten(call.template, tensors)
    dims = unflatten(call.template, in_dims[1:], None)
    split = len(values) - len(call.names)
    named_values = dict(zip(call.names, values[split:], strict=True))
    batch = definition.vmap(info, dims, *values[:split], **named_values)
    if not isinstance(batch, tuple) or len(batch) != 2:
        raise DefinitionError(
            f"The vmap of {definition.name} returned no pair.",
            given=type(batch).__name__,
            expected="(output, out_dims)",
        )
    output, out_dims = batch
    single = not isinstance(output, tuple)
    template, outputs = flatten((output,) if single else output)
    flat_dims = _flat_dims(out_dims, template, len(outputs))

    def capture(inside: list[torch.Tensor], results: list[torch.Tensor]) -> Any:
        context = Context(call.by_argument(call.needs))
        result = unflatten(template, results)
        result = result[0] if single else result
        inputs = unflatten(call.template, inside)
        setup_context(context, inputs, result)
        return call.capture(context, inside, result)

    return restore_vmap(capture, (list(in_dims[1:]), flat_dims), info.batch_size, info.randomness)(
        list(tensors), outputs
    )


def _flat_dims(dims: Any, template: Any, count: int) -> list[int | None]:
    leaves = pytree.tree_leaves(dims, is_leaf=lambda node: node is None)
    holes, _ = template
    known = all(leaf is None or isinstance(leaf, int) for leaf in leaves)
    if known and len(leaves) == len(holes):
        return [d for d, hole in zip(leaves, holes, strict=True) if hole is HOLE]
    if known and len(leaves) == 1 and not isinstance(dims, (tuple, list)):
        return leaves * count
    raise DefinitionError(
        "A vmap rule returned out_dims that do not fit its output.",
        given=f"{len(leaves)} dimensions for {count} tensors",
        expected="one dimension (or None) for each output tensor",
    )


def batched(run: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """Make author code run under vmap as its Function declares.

    It runs as it is; where torch cannot batch that, with tensors that it makes and writes to
    batched; and where it may, item by item.

    Arguments:
        run: takes trees of tensors; gives a sequence of tensors.
        call: the application. Where its forward has run item by item, so does its backward.
    """
    definition = call.definition
    looped = _per_item(run, definition)

    def either(*arguments: Any) -> Any:
        levels = get_interpreter_stack() or ()
        if not any(level.key() == TransformType.Vmap for level in levels):
            return run(*arguments)
        call.looped = call.looped or definition.batching == "loop"
        if call.looped:
            return looped(*arguments)
        with _attempt(call):
            return run(*arguments)
        tensors, places = tensors_in(*arguments), set[int]()
        while len(places) <= _WRITTEN:
            fresh = Factories(tensors, places)
            with _attempt(call), fresh:
                return run(*arguments)
            if fresh.refused <= places:
                break
            places |= fresh.refused
        with named(f"Batching of {definition.name} cannot be derived", _MEND):
            if definition.batching == "derived":
                with Factories(tensors, places):
                    return run(*arguments)
            call.looped = True
            return looped(*arguments)

    return either


@contextlib.contextmanager
def _attempt(call: Call) -> Iterator[None]:
    """Go on where rules raise: another way to batch them is left."""
    before, call.tentative = call.tentative, True
    written = Mutations(keeps_made=False)
    try:
        with written:
            yield
    except Exception as error:
        written.put_back()
        if isinstance(error, PullbackError) and not isinstance(error, Raised):
            raise
        if is_raised_by_tracing(error):
            raise
    finally:
        call.tentative = before


def share_batch(
    results: tuple[torch.Tensor, ...],
    flowing: Sequence[int],
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Give the outputs the batch dimension that any input has, at the innermost level of vmap.

    Backward may depend on a batched input that forward does not depend on. An output without the
    batch dimension would get one cotangent, summed over the batch, before backward sees the items.

    Arguments:
        results: the outputs and residuals.
        flowing: the places of the outputs that have cotangents.
        tensors: the inputs.
    """
    interpreter = peek_interpreter_stack()
    if interpreter is None or not batching():
        return results
    level, size = interpreter.level(), _batch_size(interpreter)
    if not any(_batched_at(tensor, level) for tensor in tensors):
        return results
    return tuple(
        add_batch_dim(_repeat(result, size), 0, level)
        if i in flowing and not _batched_at(result, level)
        else result
        for i, result in enumerate(results)
    )


def _repeat(tensor: torch.Tensor, size: int) -> torch.Tensor:
    # Contiguous, since forward mode writes a tangent of the same layout.
    return tensor.unsqueeze(0).expand(size, *tensor.shape).contiguous()


def _batch_size(interpreter: Any) -> int:
    return BatchInterpreter(interpreter).batchSize()


def _batched_at(tensor: torch.Tensor, level: int) -> bool:
    return is_batchedtensor(tensor) and maybe_get_level(tensor) == level


def batching() -> bool:
    """Whether the innermost transform is vmap."""
    interpreter = peek_interpreter_stack()
    return interpreter is not None and interpreter.key() == TransformType.Vmap


def _per_item(run: Callable[..., Any], definition: Definition) -> Callable[..., Any]:
    """Make a runner of author code that sees one item of a batch at a time.

    The arguments of the runner are trees of tensors; so is its result.
    """

    def looped(*arguments: Any) -> Any:
        leaves, spec = pytree.tree_flatten(arguments)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        kept: dict[str, Any] = {}

        def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(leaves)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            result = run(*pytree.tree_unflatten(filled, spec))
            kept["template"], found = flatten(tuple(result))
            return tuple(found)

        results = _Item.apply(flat, definition, *(leaves[i] for i in places))
        return unflatten(kept["template"], results)

    return looped


class _Item(torch.autograd.Function):
    """Author code that torch must not look into, run once for each item of a batch."""

    @staticmethod
    def forward(run: Callable[..., Any], definition: Definition, *tensors: torch.Tensor) -> Any:
        return tuple(
            result.view_as(result) if any(result is t for t in tensors) else result
            for result in run(*tensors)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name = inputs[1].name

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Never:
        raise _second_order(ctx.name)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Never:
        raise _second_order(ctx.name)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        # Long: what items may not do is checked in turn.
        run, definition, *tensors = args
        if info.batch_size == 0:
            raise UnsupportedError(
                f"{definition.name} batches item by item, and the batch is empty.",
                expected="at least one item",
            )
        if definition.batching == "auto" and info.batch_size >= _MANY:
            warnings.warn(
                f"{definition.name} cannot be batched by its rules as they are: it runs item by "
                f"item, {info.batch_size} times. {_MEND}",
                stacklevel=2,
            )
        dims: Sequence[int | None] = in_dims[2:]
        # Torch code can be differentiated by the levels below this one; a kernel cannot.
        transparent = definition.batching == "auto" and not batching()
        item = run if transparent else lambda *given: _Item.apply(run, definition, *given)
        shared = [tensor for tensor, dim in zip(tensors, dims, strict=True) if dim is None]
        before, numbers = versions_of(shared), _random.states(tensors)
        items, versions = [], []
        for i in range(info.batch_size):
            if info.randomness == "same":
                _random.put_back(numbers)
            given = (
                tensor if dim is None else tensor.select(dim, i)
                for tensor, dim in zip(tensors, dims, strict=True)
            )
            items.append(item(*given))
            versions.append(versions_of(items[i]))
        if info.randomness == "error" and _random.changed(numbers):
            raise UnsupportedError(
                f"{definition.name} draws random numbers, which vmap is told to refuse.",
                given='vmap(..., randomness="error"), its default',
                mend='Pass randomness="different", or "same" for the same numbers in all items.',
            )
        if versions != [versions_of(item) for item in items]:
            raise UnsupportedError(
                f"{definition.name} batches item by item, and gives for each item a tensor that it "
                "writes to for the next.",
                mend="Keep a tensor on the context, or apply it to each item, without vmap.",
            )
        if before != versions_of(shared):
            raise UnsupportedError(
                f"{definition.name} batches item by item, and changes an argument in place that "
                "all items share.",
                mend="Compute out of place, or apply it to each item, without vmap.",
            )
        if len({len(item) for item in items}) > 1:
            raise UnsupportedError(
                f"{definition.name} batches item by item, and saves other tensors for other items.",
                mend="Apply it to each item, without vmap.",
            )
        for column in zip(*items, strict=True):
            if len(shapes := {tuple(tensor.shape) for tensor in column}) > 1:
                raise UnsupportedError(
                    f"{definition.name} batches item by item, and returns or saves a tensor of "
                    "another shape for another item.",
                    given=f"shapes {sorted(shapes)}",
                    mend="Pad it to one shape, or apply it to each item, without vmap.",
                )
        stacked = tuple(torch.stack(column) for column in zip(*items, strict=True))
        return stacked, (0,) * len(stacked)


def _second_order(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} batches item by item (batching = 'loop'), so its rules cannot be differentiated "
        "below vmap.",
        mend="Write its rules in torch operations and declare batching = 'derived'.",
    )


def gradients_by_item(
    compute: Callable[[Sequence[Any]], Sequence[torch.Tensor | None]],
    cotangents: Sequence[torch.Tensor | None],
    level: int | None = None,
) -> list[torch.Tensor | None]:
    """Gradients, for each item that `is_grads_batched` has put into a batch of cotangents.

    Such a batch lies above autograd: what is computed of it has a history inside, which the batch
    does not show and a Function applied to it does not get.

    Arguments:
        compute: takes one cotangent for each output, of one item; gives the gradients.
        cotangents: for each output, or None.
        level: of the batch that is taken apart; by default the innermost.
    """
    if not are_batched(cotangents):
        return list(compute(cotangents))
    level = legacy_batch_level() if level is None else level
    # One that is no batch of this level is a batch of one.
    inside = [None if c is None else remove_legacy_batch_dim(c, level) for c in cotangents]
    size = max(len(c) for c in inside if c is not None)
    rows = [
        gradients_by_item(compute, [c if c is None else c[i % len(c)] for c in inside], level - 1)
        for i in range(size)
    ]
    return [_batch_of(column, level) for column in zip(*rows, strict=True)]


def _batch_of(items: Sequence[torch.Tensor | None], level: int) -> torch.Tensor | None:
    like = next((item for item in items if item is not None), None)
    if like is None:
        return None
    every = [torch.zeros_like(like) if item is None else item for item in items]
    return add_legacy_batch_dim(torch.stack(every), level)
