"""Which recorded calls are one call, made on all ranks of a program at once."""

from pullback.recording._recording import RecordedFunction

__all__ = ["calls_on_ranks"]


def calls_on_ranks(function: RecordedFunction) -> list[dict[int, int]]:
    """The calls that every rank of the program has made and kept.

    Ranks run one program: the third call of a Function on one is the third on each.

    Arguments:
        function: as it was recorded.

    Returns:
        For each such call, which of the recorded calls each rank has made.
    """
    found: dict[tuple[int, int], dict[int, int]] = {}
    for k, call in enumerate(function.calls):
        if call.place is not None:
            rank, count, number = call.place
            found.setdefault((number, count), {})[rank] = k
    return [by_rank for (_, count), by_rank in sorted(found.items()) if len(by_rank) == count > 1]
