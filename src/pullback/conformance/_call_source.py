"""The arguments of a call as Python source, for the script of a finding.

Numbers, tensors and containers are written down, functions and classes named. What has no such form
is taken from the call as it was recorded, where a script has that again.
"""

import ast
import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._literal import Literals
from pullback.conformance._subject import Subject
from pullback.conformance._tree import sparse_source, tensors
from pullback.internal._sparse import is_sparse
from pullback.recording.locator import only_defines

__all__ = ["IMPORT", "CallSource", "found", "name_of"]

# How an expression gets at what a module holds.
IMPORT = "__import__('importlib').import_module('{}')"


class CallSource:
    """Writes the arguments of one call, in order: positional, and by keyword.

    Example:
        >>> CallSource(Arguments.of(()), Literals()).of((2.0, [torch.float32]), "args")
        '(2.0, [torch.float32])'
    """

    def __init__(self, inputs: Arguments, literals: Literals) -> None:
        self._inputs = inputs
        self._literals = literals
        self._slots = itertools.count()

    def of(self, value: Any, path: str) -> str:
        """Python source for a value at a path.

        Raises:
            ValueError: there is none.
        """
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, next(self._slots))
        if isinstance(value, (Mapping, list, tuple)):
            try:
                return self._container(value, path)
            except ValueError:
                if tensors(value):  # they are counted: entry by entry, or not at all
                    raise
        if isinstance(value, (torch.dtype, torch.device)):
            return repr(value) if isinstance(value, torch.dtype) else f"torch.{value!r}"
        if isinstance(value, torch.Generator):
            return f"torch.Generator().manual_seed({value.initial_seed()})"
        for source in (_plain, _named):
            with contextlib.suppress(ValueError):
                return source(value)
        taken, dtype = self._taken(path), self._inputs.modules_in
        if isinstance(value, torch.nn.Module) and dtype is not None:
            return f"{IMPORT.format('copy')}.deepcopy({taken}).to({dtype})"
        return taken

    def _tensor(self, value: torch.Tensor, path: str, position: int) -> str:
        """A tensor among the arguments, with the numbers that it has now."""
        inputs, write = self._inputs, self._literals.of
        if position in inputs.owned and inputs.recorded:  # whose owner reads this very one
            return self._taken(path)
        text = write(inputs.values[position], inputs.source(position))
        text += ".requires_grad_()" * (position in inputs.differentiable)
        if is_sparse(value):
            held = f"({name_of(position, inputs.paths[position])} := {text})"
            return sparse_source(value, write, held)
        return text

    def _container(self, value: Any, path: str) -> str:
        """A dict, list or tuple, or one of a class of its own, of the same class."""
        mapping, kind = isinstance(value, Mapping), type(value)
        pairs = value.items() if mapping else enumerate(value)
        items = {_plain(key): self.of(item, f"{path}[{key!r}]") for key, item in pairs}
        texts = [f"{key}: {item}" for key, item in items.items()] if mapping else items.values()
        begin, end = "{}" if mapping else "[]" if isinstance(value, list) else "()"
        text = f"{begin}{', '.join(texts)}{',' * (begin == '(' and len(items) == 1)}{end}"
        if kind in (dict, list, tuple):
            return text
        # A script makes classes of its own, in which a Function does not see those that it knows.
        own = Subject.of(kind).locator.module == "__main__" and self._inputs.recorded
        made = f"type({self._taken(path)})" if own else _named(kind)
        return f"{made}{text}" if hasattr(kind, "_fields") else f"{made}({text})"

    def _taken(self, path: str) -> str:
        """What the script takes from the call as it was recorded.

        Raises:
            ValueError: it has no such call.
        """
        text = self._inputs.taken(path)
        if not text:
            raise ValueError(f"no source for {path}")
        return text


def _plain(value: Any) -> str:
    """Python source for plain data; raises ValueError where it is none."""
    text = repr(value)
    try:
        ast.literal_eval(text)
    except SyntaxError as error:
        raise ValueError(f"no source for {text}") from error
    return text


def _named(value: Any) -> str:
    """An expression that finds a function or class; raises ValueError where there is none."""
    if not callable(value):
        raise ValueError(f"no name leads to {value!r}")
    return found(Subject.of(value))


def name_of(position: int, path: str) -> str:
    """How a differentiated tensor is called: values of a sparse one have a name of their own."""
    return f"v{position}" if path.endswith(".values()") else path


def found(subject: Subject) -> str:
    """An expression that finds a function or class at the top level of a module or script.

    Raises:
        ValueError: there is none.
    """
    locator = subject.locator
    if not subject.importable() or (locator.module == "__main__" and not locator.file):
        raise ValueError(f"no source for {subject.target!r}")
    if locator.module != "__main__":
        torchs = locator.module == "torch"
        return f"{'torch' if torchs else IMPORT.format(locator.module)}.{locator.qualname}"
    first, *rest = locator.qualname.split(".")
    run = f"{IMPORT.format('runpy')}.run_path({locator.file!r})[{first!r}]"
    if not only_defines(locator.file):
        load = IMPORT.format("pullback.recording")
        run = f"{load}.load_script({locator.file!r}, {first!r}).{first}"
    return ".".join([run, *rest])
