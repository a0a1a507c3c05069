"""The operations alone: texts in, a text out, and feedback back."""

from pullback.text._chat import chat
from pullback.text._evaluation import deterministic, exact_match, judge
from pullback.text._joining import concat, format, join, select, split, sum
from pullback.text._python import invoke, map_python

__all__ = [
    "chat",
    "concat",
    "deterministic",
    "exact_match",
    "format",
    "invoke",
    "join",
    "judge",
    "map_python",
    "select",
    "split",
    "sum",
]
