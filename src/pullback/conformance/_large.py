"""Large arguments, judged by a part of them: a rule is as wrong for a part.

A check makes thousands of calls. What it would not end of arguments with millions of entries, it
says in seconds of some thousand, which a script can hold, too. Sizes are cut down one after the
other, the largest first, as far as forward and backward take them; the clause ``sizes`` goes up
from there again.
"""

from collections.abc import Callable

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._probe import Probe
from pullback.conformance._resize import resizings

__all__ = ["cut_down", "part_of", "shapes_cut_down"]

_LARGE, _ENOUGH = 2**18, 2**12  # entries of all arguments
_SMALLEST = 7  # that a size is cut down to


def part_of(probe: Probe, runs: Callable[[Probe], bool]) -> Probe:
    """The probe at a part of its arguments, where these are large, and it runs with that."""
    given = probe.inputs
    if given.entries <= _LARGE:
        return probe
    found = cut_down(given, _ENOUGH, lambda inputs: runs(probe.at(inputs)))
    return probe if found is given else probe.at(found)


def cut_down(given: Arguments, entries: int, takes: Callable[[Arguments], bool]) -> Arguments:
    """The arguments with their largest sizes cut down, as far as they are taken so.

    Arguments:
        given: the arguments.
        entries: of all tensors together, to which they are cut down.
        takes: whether arguments are taken.
    """
    refused: set[int] = set()
    while given.entries > entries:
        found = [
            one for one in resizings(given, 0, 0, torch.Generator())
            if one.size > _SMALLEST and one.size not in refused
        ]  # fmt: skip
        if not found:
            break
        whole, share = found[0].size, entries / given.entries
        wanted = max(_SMALLEST, int(whole * share**0.5))  # other sizes are cut down, too
        others = {n for value in given.values for n in value.shape}
        free = (n for n in range(wanted, whole) if n not in others)
        made = next((found[0].at(n) for n in free), None)
        if made is not None and takes(made):
            given = made
        else:
            refused.add(whole)
    return given


def shapes_cut_down(given: Arguments, judged: Arguments) -> tuple[str, ...]:
    """What was made smaller, in words, tensor by tensor."""
    pairs = zip(given.paths, given.values, judged.values, strict=False)
    return tuple(
        f"{path} {tuple(whole.shape)} as {tuple(part.shape)}"
        for path, whole, part in pairs
        if part.numel() < whole.numel()
    )
