"""Merge the totals of all ranks of a distributed run."""

from typing import Any

import torch

from pullback.errors import ProgramError, UnsupportedError
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key

__all__ = ["reduce_totals"]


def reduce_totals(totals: dict[Key, Statistics], group: Any = None) -> dict[Key, Statistics]:
    """Merge what each rank measured, in the order of ranks, so that every rank has one answer.

    Ranks may have seen different tensors, or none.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UnsupportedError(
            "There are no other ranks to merge with.",
            expected="torch.distributed.init_process_group(...) before",
            mend="On one process read totals() directly.",
        )
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    mine = [(tuple(key), statistics.to_dict()) for key, statistics in totals.items()]
    try:
        distributed.all_gather_object(gathered, mine, group=group)
    except RuntimeError as error:  # the backend's own: a peer is gone, or too slow
        raise ProgramError(
            "Another rank did not answer, so the totals were not merged.",
            given=str(error).splitlines()[0][:200],
            expected="every rank of the group to call reduce()",
            mend="The totals of this rank are still in totals() and in its reports.",
        ) from error
    merged: dict[Key, Statistics] = {}
    for rank in gathered:
        for fields, data in rank:
            key, statistics = Key(*fields), Statistics.from_dict(data)
            merged[key] = merged[key].merge(statistics) if key in merged else statistics
    return merged
