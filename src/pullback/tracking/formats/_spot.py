"""`Spot`: where in a model a product is."""

from typing import NamedTuple

__all__ = ["Spot"]


class Spot(NamedTuple):
    """A factor of a product, the same at each pass of a model.

    Arguments:
        module: the name of the innermost module whose forward runs, ``""`` for the whole model.
        product: the number of the product, among those of the pass in this module with this
            parameter.
        factor: the number of the factor.
        parameter: the name of the parameter that the product multiplies by, ``""`` if by none, or
            if that is not asked for. It tells products of one module apart of which some passes
            call only a few.
    """

    module: str
    product: int
    factor: int = 0
    parameter: str = ""
