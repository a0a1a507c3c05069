"""What the script of a finding prints, run in this process: to start one takes seconds."""

import contextlib
import io

import torch

from pullback.conformance.script._repro import _prints

__all__ = ["printed_by", "prints_numbers"]


def prints_numbers(printed: str, finding: dict[str, str]) -> bool:
    """Whether the numbers of a finding are among those printed."""
    return all(_prints(printed, finding[name]) for name in ("expected", "got"))


def printed_by(script: str) -> str:
    """The default dtype that a script sets, as one of `dtype` does, is that of no later test."""
    printed, default = io.StringIO(), torch.get_default_dtype()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})
    finally:
        torch.set_default_dtype(default)
    return printed.getvalue()
