"""Numbers and arrays of NumPy's as Python's own."""

from typing import Any

import numpy as np

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Return a number of NumPy's as a number, an array as lists, and anything else as it is.

    Example:
        >>> import numpy as np
        >>> plain(np.float32(0.5)), plain(np.arange(3)), plain(0.1)
        (0.5, [0, 1, 2], 0.1)
    """
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
