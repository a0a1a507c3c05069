"""Hand a subject and its inputs to another process as plain data: names, numbers and tensors."""

from pathlib import Path
from typing import Any

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._subject import Subject
from pullback.conformance._tree import replace
from pullback.errors import ArgumentError
from pullback.recording.codec import Encoder, Loader, NotPlain, decode_call
from pullback.recording.locator import Locator

__all__ = ["locate", "pack", "unpack"]

_UNLIMITED = 2**63


def locate(subject: Subject) -> Locator:
    """Where another process finds the subject.

    Arguments:
        subject: a subject under a module and name, or in a script.

    Returns:
        Its locator.

    Raises:
        ArgumentError: no other process can find it.
    """
    if not subject.importable():
        raise ArgumentError(
            f"{subject.name} cannot be found by another process.",
            given="a local, unnamed or replaced object",
            expected="a Function or callable at the top level of a module or script",
            mend="Move it to the top level, or pass isolate=False.",
        )
    if subject.locator.module == "__main__" and not subject.locator.file:
        raise ArgumentError(
            f"{subject.name} was defined at a prompt, where no other process finds it.",
            mend="Save it to a file, or pass isolate=False.",
        )
    return subject.locator


def pack(arguments: Arguments, path: Path) -> None:
    """Write arguments so that they are read without executing code.

    Arguments:
        arguments: the arguments.
        path: the file to write.

    Raises:
        ArgumentError: an argument is neither a tensor nor plain data.
    """
    chosen = set(arguments.differentiable if arguments.declared else ())
    values = [
        arguments.owned[k] if k in arguments.owned else value.clone().requires_grad_(k in chosen)
        for k, value in enumerate(arguments.values)
    ]
    slots = iter(values)
    parts = (replace(part, slots) for part in (arguments.args, dict(arguments.kwargs)))
    try:
        call = Encoder(_UNLIMITED, expressions=True).encode_call(*parts)
    except NotPlain as reason:
        raise ArgumentError(
            "An argument cannot be handed to another process.",
            given=str(reason),
            expected="tensors, plain data, and what is found by its name",
            mend="Pass isolate=False.",
        ) from reason
    torch.save(call, path)


def unpack(path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read what `pack` wrote.

    Returns:
        Positional and keyword arguments; the chosen tensors require a gradient.
    """
    return decode_call(**torch.load(path, weights_only=True), loader=Loader())
