"""`Spot`: where in a model a product is."""

from typing import NamedTuple

__all__ = ["Spot"]


class Spot(NamedTuple):
    """A factor of a product, the same at each pass of a model that goes the same way.

    Arguments:
        module: the name of the innermost module whose forward runs, ``""`` for the whole model.
        product: the number of the product within the pass.
        factor: the number of the factor.
    """

    module: str
    product: int
    factor: int = 0
