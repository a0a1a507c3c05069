"""Hand a subject and its inputs to another process as plain data: names, numbers and tensors."""

import importlib
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._subject import Subject
from pullback.errors import ArgumentError
from pullback.tensor import complete

__all__ = ["find_target", "pack", "target_name", "unpack"]

_CALLABLE = "pullback callable"
_GENERATOR = "pullback generator"
_PLAIN = (int, float, complex, str, bool, type(None), torch.dtype, torch.Size, torch.device)


def target_name(subject: Subject) -> dict[str, str]:
    """Where another process finds the subject.

    Arguments:
        subject: a subject under a module and name, or in a script.

    Returns:
        ``name``, ``path`` of the script (empty for a module) and ``how`` it was wrapped.

    Raises:
        ArgumentError: no other process can find it.
    """
    target, how = subject.target, ""
    wrapped = getattr(target, "__wrapped__", None)
    if not subject.importable() and isinstance(wrapped, type):
        target, how = wrapped, "complete"
    inner = Subject.of(target)
    if not inner.importable():
        raise ArgumentError(
            f"{subject.name} cannot be found by another process.",
            given="a local, unnamed or replaced object",
            expected="a Function or callable at the top level of a module or script",
            mend="Move it to the top level, or pass isolate=False.",
        )
    module = inner.name.partition(":")[0]
    path = str(getattr(sys.modules.get("__main__"), "__file__", "") or "")
    if module == "__main__" and not path:
        raise ArgumentError(
            f"{subject.name} was defined at a prompt, where no other process finds it.",
            mend="Save it to a file, or pass isolate=False.",
        )
    script = os.path.abspath(path) if module == "__main__" else ""
    return {"name": inner.name, "path": script, "how": how}


def find_target(where: Mapping[str, str]) -> Any:
    """The object that `target_name` described.

    Arguments:
        where: what `target_name` returned.

    Returns:
        The Function class or callable.
    """
    module, _, qualname = where["name"].partition(":")
    if where["path"]:
        sys.path.insert(0, str(Path(where["path"]).parent))
        first, *rest = qualname.split(".")
        value = runpy.run_path(where["path"], run_name="__checked__")[first]
    else:
        rest, value = qualname.split("."), importlib.import_module(module)
    for part in rest:
        value = getattr(value, part)
    if where["how"] == "complete":
        return complete(cast(type[torch.autograd.Function], value))
    return value


def pack(arguments: Arguments, path: Path) -> None:
    """Write arguments so that they are read without executing code.

    Arguments:
        arguments: the arguments.
        path: the file to write.

    Raises:
        ArgumentError: an argument is neither a tensor nor plain data.
    """
    chosen = set(arguments.differentiable if arguments.declared else ())
    values = [value.clone().requires_grad_(k in chosen) for k, value in enumerate(arguments.values)]
    slots = iter(values)
    content = _encode([list(arguments.args), dict(arguments.kwargs)], slots)
    torch.save({"content": content, "chosen": sorted(chosen)}, path)


def unpack(path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read what `pack` wrote.

    Returns:
        Positional and keyword arguments; the chosen tensors require a gradient.
    """
    stored = torch.load(path, weights_only=True)
    counter = iter(range(1_000_000))
    args, kwargs = _decode(stored["content"], counter, set(stored["chosen"]))
    return tuple(args), kwargs


def _encode(value: Any, slots: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(slots).detach()
    if isinstance(value, Mapping):
        return {key: _encode(item, slots) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_encode(item, slots) for item in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, torch.Generator):
        return {_GENERATOR: value.get_state()}
    if isinstance(value, _PLAIN):
        return value
    if callable(value) and Subject.of(value).importable():
        return {_CALLABLE: Subject.of(value).name}
    raise ArgumentError(
        "An argument cannot be handed to another process.",
        given=f"{type(value).__name__}: {value!r:.80}",
        expected="tensors, numbers, texts, and functions at the top level of a module",
        mend="Pass isolate=False.",
    )


def _decode(value: Any, counter: Any, chosen: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.requires_grad_(next(counter) in chosen)
    if isinstance(value, dict):
        if set(value) == {_GENERATOR}:
            generator = torch.Generator()
            generator.set_state(value[_GENERATOR])
            return generator
        if set(value) == {_CALLABLE}:
            return find_target({"name": value[_CALLABLE], "path": "", "how": ""})
        return {key: _decode(item, counter, chosen) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_decode(item, counter, chosen) for item in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
