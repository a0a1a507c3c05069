"""`track`: the identity, which writes down what passes through it in each direction."""

from typing import Any

import torch

from pullback.errors import ArgumentTypeError
from pullback.tensor import Function
from pullback.tracking.measure._dispatch import check_measurable
from pullback.tracking.watch._operators import follow_operator, observe_operator
from pullback.tracking.watch._record import Record
from pullback.tracking.watch._store import Store

__all__ = ["Follow", "Track", "pass_through", "track"]


class Track(Function):
    """The identity; its backward is the identity too and writes down the cotangent.

    ``y = x``, ``x' = y'``. The second output is the ticket that ties the gradient to its call.
    """

    _direct = True

    @staticmethod
    def forward(
        values: torch.Tensor, handle: int, name: str, copy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ticket = observe_operator(values.detach(), handle, name, "forward")
        return values.clone() if copy else values.view_as(values), ticket

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.handle, ctx.name, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (ticket,) = ctx.saved_tensors
        followed = Follow.apply(cotangents[0], ticket, ctx.handle, ctx.name, "backward", 1)
        return followed, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        # Not derived: transposing the backward would write down cotangents that nobody sent.
        (ticket,) = ctx.saved_tensors
        followed = Follow.apply(tangents[0], ticket, ctx.handle, ctx.name, "tangent", 1)
        return followed, None


class Follow(Function):
    """The identity on a cotangent or tangent, written down with its order of differentiation."""

    _direct = True

    @staticmethod
    def forward(  # noqa: PLR0917 - apply takes arguments by position
        values: torch.Tensor,
        ticket: torch.Tensor,
        handle: int,
        name: str,
        direction: str,
        order: int,
    ) -> torch.Tensor:
        follow_operator(values.detach(), ticket, handle, name, direction, order)
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ticket, ctx.handle, ctx.name, _, ctx.order = inputs
        ctx.save_for_backward(ticket)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (ticket,) = ctx.saved_tensors
        order = ctx.order + 1
        followed = Follow.apply(cotangents[0], ticket, ctx.handle, ctx.name, "backward", order)
        return followed, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (ticket,) = ctx.saved_tensors
        order = ctx.order + 1
        return Follow.apply(tangents[0], ticket, ctx.handle, ctx.name, "tangent", order)


def track(values: torch.Tensor, record: Record) -> torch.Tensor:
    """Pass a tensor through unchanged and record statistics of it and of its gradient.

    Arguments:
        values: any shape and dtype; only a floating or complex tensor has a gradient to record.
        record: where the statistics go. It may be used any number of times in a step: each use
            is a call of its own.

    Returns:
        A view of ``values``. Change it in place and torch refuses; use ``track`` on a clone then.

    Raises:
        ArgumentTypeError: not a tensor, or not a record.
        UnsupportedError: a sparse, nested or quantised tensor.

    Example:
        >>> record = Record("hidden")
        >>> x = torch.tensor([1.0, -3.0], requires_grad=True)
        >>> (track(x, record) * 2).sum().backward()
        >>> record.step()
        >>> record.total("forward").mean_abs, record.total("backward").mean
        (2.0, 2.0)
    """
    if not isinstance(values, torch.Tensor):
        raise ArgumentTypeError(
            "Only tensors can be tracked.",
            given=type(values).__name__,
            expected="a torch.Tensor",
        )
    if not isinstance(record, Record):
        raise ArgumentTypeError(
            "track needs a record to write to.",
            given=type(record).__name__,
            expected="a pullback.tracking.Record",
            mend='Make one with Record("name").',
        )
    if not torch.compiler.is_compiling():  # there, the operator checks when it runs
        check_measurable(values)
    return pass_through(values, record.store, record.name)


def pass_through(
    values: torch.Tensor, store: Store, name: str, *, copy: bool = False
) -> torch.Tensor:
    """Apply `Track` under a name; a copy, instead of a view, may then be changed in place."""
    return Track.apply(values, store.handle, name, copy)[0]
