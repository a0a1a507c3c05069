"""What is a number: Python's, NumPy's and fractions, but no truth; and lists of them."""

import math
import numbers
import sys
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["are_numbers", "is_number", "plain"]


def plain(value: Any) -> Any:
    """Return a number of NumPy's as a number, an array as lists, and anything else as it is.

    A number that no float can hold, also in a list, is infinite: what asks for finite ones then
    refuses it by name.

    Example:
        >>> import numpy as np
        >>> plain(np.float32(0.5)), plain(np.arange(3)), plain(0.1), plain([10**400])
        (0.5, [0, 1, 2], 0.1, [inf])
    """
    if type(value) in (float, str):  # most are: to ask for fractions takes a microsecond
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, (int, Fraction)) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, Fraction) else value


def is_number(value: Any) -> bool:
    """Whether something is a real number, which a truth is not."""
    # The two that most are come first: to ask for any kind of number takes four times as long.
    return isinstance(value, (float, int, numbers.Real)) and not isinstance(value, bool)


def are_numbers(value: Any) -> bool:
    """Whether something is a number, or lists of them."""
    return all(map(are_numbers, value)) if isinstance(value, (list, tuple)) else is_number(value)
