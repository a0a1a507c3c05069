"""Write one Function as source: its maths, where it hides a value, and through what."""

import itertools
import linecache
import random
import sys
import types
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from tests.tensor.hidden.maths import MATHS, Maths, plain_source
from tests.tensor.hidden.passages import ORDINARY_PASSAGES, PASSAGES, Passage
from tests.tensor.hidden.stores import ORDINARY, STORES, Store

__all__ = ["Sample", "draw", "load", "plain", "unload"]

IMPORTS = """\
import array, collections, concurrent.futures, contextvars, copy, ctypes, dataclasses
import functools, io
import itertools, pickle, queue, threading, types, weakref
import numpy as np, torch, pullback

def bisected(x):
    # y with y ** 3 + y = x, of whose steps autograd sees no derivative
    low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
    for _ in range(48):
        y = (low + high) / 2
        below = y ** 3 + y < x
        low, high = torch.where(below, y, low), torch.where(below, high, y)
    return y

class Crooked(torch.autograd.Function):
    # the cube, with the backward of the identity
    @staticmethod
    def forward(ctx, x):
        return x ** 3
    @staticmethod
    def backward(ctx, g):
        return g
"""
Way = Literal["Function", "complete", "complete declared", "published"]
Side = Literal["forward", "backward", "forward, under enable_grad"]
_OPEN = Store("nowhere")
_numbers = itertools.count()


@dataclass(frozen=True)
class Sample:
    """One Function.

    Arguments:
        side: where the passage stands: around what is kept, or around what is used.
        split: written in the split form.
        cast: the dtype that the rules cast to and back, around what is kept and the cotangent.
    """

    maths: Maths
    store: Store
    passage: Passage | None
    side: Side
    way: Way
    split: bool
    dtype: torch.dtype
    cast: torch.dtype | None = None

    @property
    def coarsest(self) -> torch.dtype:
        """The dtype that loses the most on the way."""
        return max((self.dtype, self.cast or self.dtype), key=lambda it: torch.finfo(it).eps)

    def _rounded(self, value: str, dtype: str) -> str:
        return f"({value}).to({self.cast}).to({dtype})" if self.cast else value

    @property
    def place(self) -> str:
        """The name of the hiding place in the counts."""
        if self.passage is None:
            return f"kept: {self.store.name}"
        side = "backward" if self.maths.late or self.store is _OPEN else self.side
        return f"{side}: {self.passage.name}"

    @property
    def is_stopped(self) -> bool:
        """Whether its author stopped the gradient of the hidden value.

        He wrote a stop-gradient in backward; or made the value a differentiable output whose
        cotangent backward ignores: through an output goes the author's own rule, which says 0.
        """
        if self._returned() and not self.store.marked:
            return True
        late = self.side == "backward" or self.maths.late or self.store is _OPEN
        return self.passage is not None and self.passage.stops and late

    def is_ordinary(self) -> bool:
        """Whether published code is full of it, so that a refusal would be a loss."""
        stored = self.store.name in ORDINARY or self.store is _OPEN
        return (
            self.maths.ordinary
            and stored
            and not self.is_stopped
            and (self.passage is None or self.passage.name in ORDINARY_PASSAGES)
        )

    def open(self) -> "Sample":
        """The same Function with nothing hidden."""
        return replace(self, store=next(s for s in STORES if s.name == "saved"), passage=None)

    def source(self) -> str:
        """The Function as a program of its own, with ``F`` for what is applied."""
        base = "pullback.Function" if self.way == "Function" else "torch.autograd.Function"
        head = [self.store.head]
        if self.passage is not None:
            head.append(self.passage.source)
        intent = f"gradient = {self.maths.intent!r}" if self.way == "Function" else ""
        lines = [IMPORTS, *head, f"class Hidden{self.maths.name}({base}):"]
        lines += [f"    {line}" for line in (intent, self.store.body) if line]
        lines += self._split() if self.split else self._combined()
        lines += self._backward()
        made = {
            "Function": "Hidden{0}",
            "published": "Hidden{0}",
            "complete": "pullback.complete(Hidden{0})",
            "complete declared": "pullback.complete(Hidden{0}, gradient={1!r})",
        }[self.way].format(self.maths.name, self.maths.intent)
        text = "\n".join(line for line in lines if line) + f"\n\nF = {made}\n"
        return text.replace("NAME", f"Hidden{self.maths.name}")

    def _names(self) -> str:
        return ", ".join(self.maths.arguments)

    def _put(self) -> list[str]:
        """Forward from the value on: what is hidden, kept and saved."""
        lines: list[str] = []
        kept = ""
        if not self.maths.late and self.store is not _OPEN:
            around = self.passage is not None and self.side != "backward"
            hidden = f"passage({self.maths.hidden})" if around else self.maths.hidden
            hidden = self._rounded(hidden, "y.dtype")
            lines = [f"h = {hidden}", self.store.put]
            if self.side == "forward, under enable_grad":
                lines = ["with torch.enable_grad():", f"    h = {hidden}", "h = h.detach()"]
                lines.append(self.store.put)
            kept = self.store.saves
        saved = ", ".join(name for name in (*self._saved(), kept) if name)
        return [*lines, f"ctx.save_for_backward({saved})"]

    def _saved(self) -> tuple[str, ...]:
        if self.store is _OPEN and not self.maths.late:
            return self.maths.arguments + (("y",) if "y" in self.maths.hidden else ())
        return self.maths.saved

    def _returned(self) -> bool:
        return bool(self.store.returns) and not self.maths.late

    def _combined(self) -> list[str]:
        lines = [f"y = {self.maths.value}", *self._put()]
        if self._returned():
            lines.append(f"out = {self.store.returns}")
            if self.store.saves == "h" and self.store.returns == "h":
                lines[-1] = "out = h"
            if self.store.marked:
                lines.append("ctx.mark_non_differentiable(out)")
            lines.append("return y, out")
        else:
            lines.append("return y")
        return _method("forward", f"ctx, {self._names()}", lines)

    def _split(self) -> list[str]:
        forward = _method("forward", self._names(), [f"return {self.maths.value}"])
        lines = [f"{self._names()}, = inputs", "y = output", *self._put()]
        return forward + _method("setup_context", "ctx, inputs, output", lines)

    def _backward(self) -> list[str]:
        saved = self._saved()
        names = "".join(f"{name}, " for name in saved)
        lines = [f"{names}*kept, = ctx.saved_tensors"]
        if self.cast:
            lines.append(f"g = {self._rounded('g', 'g.dtype')}")
        inside = self.passage is not None and (self.side == "backward" or self.maths.late)
        if self.maths.late:
            around = self.passage is not None
            lines.append(
                f"h = passage({self.maths.hidden})" if around else f"h = {self.maths.hidden}"
            )
            if self.store is not _OPEN and not self.store.saves:
                lines += [self.store.put, self.store.take]
        elif self.store is _OPEN:
            lines.append(f"h = passage({self.maths.hidden})")
        else:
            lines.append(self.store.take)
            if inside:
                number = "torch.as_tensor([h], dtype=g.dtype)" if self.store.number else "h"
                lines.append(f"h = passage({number})")
        lines.append(f"return {', '.join(self.maths.gradients)}")
        return _method("backward", "ctx, g, *_", lines)


def _method(name: str, parameters: str, lines: list[str]) -> list[str]:
    body = [f"        {line}" for line in lines if line]
    return ["    @staticmethod", f"    def {name}({parameters}):", *body]


def draw(rng: random.Random) -> Sample:
    """A Function at random."""
    kind = rng.choices(("store", "passage", "both"), (5, 4, 1))[0]
    store = rng.choice(STORES) if kind != "passage" else rng.choice((STORES[0], STORES[5], _OPEN))
    passage = None if kind == "store" else rng.choice(PASSAGES)
    suits = [m for m in MATHS if not store.number or m.name in ("Total", "Scaled")]
    if store.returns:  # an output is not the other one too
        suits = [m for m in suits if m.hidden != "y"]
    maths = rng.choice([m for m in suits if passage or not m.late or store.number or store.put])
    dtype = rng.choices(
        (torch.float64, torch.float32, torch.bfloat16, torch.float16), (6, 2, 1, 1)
    )[0]
    return Sample(
        maths,
        store,
        passage,
        rng.choices(("forward", "backward", "forward, under enable_grad"), (5, 5, 1))[0],
        rng.choice(("Function", "complete", "complete declared")),
        rng.random() < 0.4 and not store.returns,
        dtype,
        rng.choice((torch.float32, torch.float16, torch.bfloat16)) if rng.random() < 0.1 else None,
    )


def load(source: str) -> Any:
    """Run a source and return its module; `inspect` finds the source as of any file."""
    name = f"hidden_{next(_numbers)}"
    module = types.ModuleType(name)
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[name] = module  # where compilers look globals up
    exec(compile(source, filename, "exec"), vars(module))
    return module


def unload(module: Any) -> None:
    """Forget a module that was loaded from a source."""
    linecache.cache.pop(f"<{module.__name__}>", None)
    sys.modules.pop(module.__name__, None)


_plain: dict[str, Any] = {}


def plain(maths: Maths, stopped: bool = False) -> Any:
    """What is right: a formula for autograd, or a Function that hides nothing."""
    if maths.formula is not None and not stopped:
        return maths.formula
    key = f"{maths.name} {stopped}"
    if key not in _plain:
        module = load(IMPORTS + plain_source(maths, stopped))
        _plain[key] = getattr(module, f"Plain{maths.name}").apply
    return _plain[key]
