"""The store's three entries as operators, so that compilers and transforms see one node each.

They carry no rule of differentiation: `pullback.tracking.watch._track` does. Each is declared to
have an ordered effect, so that a compiler neither drops nor reorders nor repeats it; the rows
themselves are found through the store's handle, out of the compiler's sight, so that no copy of a
buffer is ever made to functionalise the write.
"""

from collections.abc import Callable
from typing import Any, cast

import torch

from pullback.internal.torch import current_graph_task_id, declare_ordered
from pullback.tracking.measure._layout import Direction
from pullback.tracking.run._identity import Ticket
from pullback.tracking.watch._store import find_store

__all__ = ["begin_operator", "follow_operator", "observe_operator"]

_IDLE = torch.zeros(6, dtype=torch.int64)


@torch.library.custom_op("pullback_tracking::observe", mutates_args=())
def observe_operator(values: torch.Tensor, handle: int, name: str, direction: str) -> torch.Tensor:
    """Measure a value; the result is its ticket, six integers on the host."""
    store = find_store(handle)
    if store is None:
        return _IDLE.clone()
    recomputed = in_backward()
    ticket = store.observe(values, name, cast("Direction", direction), recomputed)
    return torch.tensor(ticket, dtype=torch.int64)


@torch.library.custom_op("pullback_tracking::follow", mutates_args=())
def follow_operator(  # noqa: PLR0917 - an operator takes its arguments by position
    values: torch.Tensor,
    ticket: torch.Tensor,
    handle: int,
    name: str,
    direction: str,
    order: int,
) -> None:
    """Measure the gradient of a value with a ticket."""
    store = find_store(handle)
    if store is not None:
        call, microbatch, step, *flags = ticket.tolist()
        known = Ticket(call, microbatch, step, *map(bool, flags))
        store.follow(values, name, known, order, cast("Direction", direction))


@torch.library.custom_op("pullback_tracking::begin", mutates_args=())
def begin_operator(handle: int, root: str, training: bool) -> None:
    """Note that a forward pass of a model starts."""
    store = find_store(handle)
    if store is not None and not in_backward():
        store.begin(root, training)


def in_backward() -> bool:
    """Whether autograd is walking a graph: a forward pass now is a recomputation."""
    return current_graph_task_id() != -1


def _of_the_whole_batch(operator: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of vmap: the batch is one tensor, which the kernel gets as it lies in memory."""
    return lambda info, in_dims, *given: (operator(*given), None)


observe_operator.register_fake(lambda *_: torch.empty(6, dtype=torch.int64))
follow_operator.register_fake(lambda *_: None)
begin_operator.register_fake(lambda *_: None)
for _operator in (observe_operator, follow_operator):
    _operator.register_vmap(_of_the_whole_batch(_operator))
for _operator in (observe_operator, follow_operator, begin_operator):
    declare_ordered(_operator)
