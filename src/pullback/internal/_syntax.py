"""Read the syntax of Python code, in one thread at a time.

Up to Python 3.12 the depth of the trees that are being made is one number for all threads, and
what finds it changed ends with a SystemError: https://github.com/python/cpython/issues/106905.
"""

import ast
import os
import threading

__all__ = ["parse"]

_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # no copy is made while a tree is
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def parse(source: str | bytes, file: str = "<unknown>") -> ast.Module:
    """The tree of the code, as `ast.parse` makes it.

    Raises:
        SyntaxError: it is no code.
        ValueError: it holds a zero byte.
    """
    with _lock:
        return ast.parse(source, file)
