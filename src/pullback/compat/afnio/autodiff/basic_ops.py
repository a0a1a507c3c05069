"""The operations on Variables, each with an ``apply``."""

from pullback.compat.afnio.cognitive.functional import add, as_function, split, sum

__all__ = ["Add", "Split", "Sum"]

Add, Split, Sum = as_function(add), as_function(split), as_function(sum)
