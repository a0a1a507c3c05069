"""`Spot`: where in a model a product is."""

import inspect
from typing import NamedTuple

from torch import nn

__all__ = ["Place", "Spot", "place_of_call"]

Place = tuple[tuple[str, int, int], ...]
_CALLS_FORWARD = nn.Module.__call__.__code__.co_filename


class Spot(NamedTuple):
    """A factor of a product, the same at each pass of a model.

    Arguments:
        module: the name of the innermost module whose forward runs, ``""`` for the whole model.
        product: the number of the product, among those of the pass in this module and place.
        factor: the number of the factor.
        place: where the module calls it, if that is asked for.
    """

    module: str
    product: int
    factor: int = 0
    place: Place = ()


def place_of_call() -> Place:
    """The lines of code that lead from the forward of a module to here.

    They tell products of one module apart of which some passes call only a few.
    """
    found = []
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename != _CALLS_FORWARD:
        found.append((frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
