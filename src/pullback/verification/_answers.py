"""What a kernel or its reference answers: outputs and gradients, as tensors in a row."""

import copy
import inspect
import itertools
import numbers
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import torch

from pullback.conformance import Arguments, NoEnd, reseed
from pullback.internal.torch import pytree

__all__ = ["Answer", "Placing", "Runner", "Slow", "Subject", "dtype_of", "kept_in", "same_bits"]

Placing = Callable[[torch.Tensor], torch.Tensor]
"""Values -> the tensor that is handed over, without history."""


class Slow(Exception):
    """The reference gives no answer in time."""


@dataclass(frozen=True)
class Answer:
    """What one call gave."""

    outputs: tuple[torch.Tensor, ...] = ()
    # Zeros where one was None; none where none were asked for.
    gradients: tuple[torch.Tensor, ...] = ()
    names: tuple[str, ...] = ()  # of the outputs, then of the gradients
    history: bool = False  # whether some output could be differentiated
    fault: str = ""  # why there is no answer

    @property
    def every(self) -> tuple[torch.Tensor, ...]:
        """The outputs, then the gradients."""
        return self.outputs + self.gradients

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor with a name for a report."""
        return zip(self.names, self.every, strict=True)


class Subject:
    """A function, Function, custom operator or module, called the same way in every dtype."""

    def __init__(self, given: Any) -> None:
        owner = getattr(given, "__self__", given)  # the Function of an `apply`
        is_function = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        self.given = owner if is_function else given
        self.call: Callable[..., Any] = owner.apply if is_function else given
        self._written: tuple[int, ...] | None = None
        self._modules: dict[torch.dtype, tuple[torch.nn.Module, list[torch.Tensor]]] = {}

    def written(self, arguments: Arguments) -> tuple[int, ...]:
        """The positions of the tensors that it writes to, asked once of arguments of a kind."""
        if self._written is None:
            tensors = [value.clone() for value in arguments.values]
            every = arguments.with_differentiable(tuple(range(len(tensors))))
            args, kwargs = every.build(tensors)
            with torch.no_grad():
                self.of(dtype_of(arguments))(*args, **kwargs)
            pairs = enumerate(zip(tensors, arguments.values, strict=True))
            self._written = tuple(k for k, (left, given) in pairs if not _are_equal(left, given))
        return self._written

    def of(self, dtype: torch.dtype) -> Callable[..., Any]:
        """It as it computes in a dtype: a copy of a module is cast, once.

        Its parameters and buffers are as they came; what else it keeps stays, as a cache does.
        """
        if not isinstance(self.given, torch.nn.Module):
            return self.call
        if dtype not in self._modules:
            made = copy.deepcopy(self.given).to(dtype)
            self._modules[dtype] = made, [t.detach().clone() for t in _held(made)]
        module, came = self._modules[dtype]
        for tensor, value in zip(_held(module), came, strict=False):
            if tensor.shape == value.shape:
                tensor.data.copy_(value)
        return module

    @property
    def name(self) -> str:
        """``"package.module:name"``."""
        named = self.given if hasattr(self.given, "__qualname__") else type(self.given)
        return f"{named.__module__}:{named.__qualname__}".replace("<locals>.", "")


@dataclass(kw_only=True)
class Runner:
    """Calls a kernel or its reference on copies of arguments."""

    kernel: Subject
    reference: Subject
    seed: int  # of everything random, before each call, and of the cotangents
    gradients: bool = True  # whether they are asked for
    cotangents: Placing = lambda tensor: tensor  # before they are handed over

    def run(
        self, function: Callable[..., Any], arguments: Arguments, place: Placing = torch.clone
    ) -> Answer:
        """The answer to arguments, of which copies are handed over, in memory of their own."""
        tensors = [place(value) for value in arguments.values]
        reseed(self.seed)
        try:
            return self.call(function, arguments, tensors)
        except NoEnd:
            raise
        except Exception as error:  # whatever the kernel raises is what it answers
            return Answer(fault=_told(error))

    def refer(
        self, arguments: Arguments, dtype: torch.dtype, place: Placing = torch.clone
    ) -> Answer:
        """What the reference answers in a dtype; `Slow` where it gives no answer in time."""
        try:
            return self.run(self.reference.of(dtype), arguments, place)
        except NoEnd as error:
            raise Slow from error

    def call(
        self, function: Callable[..., Any], arguments: Arguments, tensors: Sequence[torch.Tensor]
    ) -> Answer:
        """The answer to these very tensors; what it raises is raised, but in its backward."""
        points = {arguments.paths[k]: tensors[k] for k in arguments.differentiable}
        for point in points.values():
            point.requires_grad_(self.gradients)
        points |= self._common(function, "parameters")
        outputs = self.outputs(function, arguments, tensors)
        history = any(map(_has_history, outputs.values()))
        found: tuple[torch.Tensor, ...] = ()
        if self.gradients and history and points:
            try:
                found = self._gradients(list(outputs.values()), list(points.values()))
            except NoEnd:
                raise
            except Exception as error:
                return Answer(history=True, fault=_told(error))
        kept = tuple(output.detach() for output in outputs.values())
        names = *outputs, *(f"the gradient of {path}" for path in points if found)
        return Answer(kept, found, names, history)

    def outputs(
        self, function: Callable[..., Any], arguments: Arguments, tensors: Sequence[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What a function gives for these very tensors in the place of its arguments', by name.

        What it returns, numbers among it, and the arguments that the reference writes to.
        """
        every = arguments.with_differentiable(tuple(range(len(tensors))))
        # No leaf of autograd may be written to, as an argument in a program may be.
        handed = [_Handed.apply(t) if t.requires_grad else t for t in tensors]
        args, kwargs = every.build(handed)
        found = _named_leaves(function(*args, **kwargs))
        left = {arguments.paths[k]: handed[k] for k in self.reference.written(arguments)}
        left |= {name: t.clone() for name, t in self._common(function, "buffers").items()}
        return found | {f"{name} as it is left": tensor for name, tensor in left.items()}

    def _common(self, function: Any, kind: str) -> dict[str, torch.Tensor]:
        """Of a module, the tensors of a kind that kernel and reference both have, by name."""
        pair = kept_in(self.kernel.given, kind), kept_in(self.reference.given, kind)
        own = kept_in(inspect.unwrap(function), kind)
        both = [n for n in pair[1] if n in pair[0] and pair[0][n].shape == pair[1][n].shape]
        return {f"its {name}": own[name] for name in both if name in own}

    def unequal(self) -> str:
        """A parameter or buffer in which kernel and reference differ as they are given, if any."""
        for kind in ("parameters", "buffers"):
            kernel, reference = (self._common(s.given, kind) for s in (self.kernel, self.reference))
            for name, value in kernel.items():
                if not _are_equal(value, reference[name]):
                    return name
        return ""

    def _gradients(
        self, outputs: Sequence[torch.Tensor], points: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        roots = {k: output for k, output in enumerate(outputs) if output.requires_grad}
        weights = [self.weights(root, k) for k, root in roots.items()]
        found = torch.autograd.grad(list(roots.values()), points, weights, materialize_grads=True)
        return tuple(gradient.detach() for gradient in found)

    def weights(self, output: torch.Tensor, number: int) -> torch.Tensor:
        """The cotangent of an output: the same numbers in every dtype that can hold them.

        They are rounded to the coarsest dtype, so that the truth is told of the same.
        """
        return self.cotangents(_drawn(output.shape, self.seed + number).to(output, copy=True))

    def silent(self) -> Self:
        """The same without gradients."""
        return replace(self, gradients=False)


@lru_cache(maxsize=4)
def _drawn(shape: torch.Size, seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=drawn, dtype=torch.float64, device="cpu")
    return numbers.to(torch.bfloat16)


def _held(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())


def kept_in(module: Any, kind: str) -> dict[str, torch.Tensor]:
    """The buffers of a module, or the parameters that are learnt; nothing of what is none.

    By the names that they have before the module is compiled.
    """
    named = getattr(module, f"named_{kind}")() if isinstance(module, torch.nn.Module) else ()
    learnt = ((n, t) for n, t in named if kind == "buffers" or t.requires_grad)
    return {name.removeprefix("_orig_mod."): tensor for name, tensor in learnt}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class _Handed(torch.autograd.Function):
    """The same memory, with a history."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return cotangents[0]


def _has_history(output: torch.Tensor) -> bool:
    """Whether an output can be differentiated; an argument that is as it was handed cannot."""
    return output.requires_grad and type(output.grad_fn).__name__ != "_HandedBackward"


def _named_leaves(returned: Any) -> dict[str, torch.Tensor]:
    """The tensors and numbers of what was returned, with the names that dictionaries give them."""
    found = []
    for path, leaf in pytree.tree_flatten_with_path(returned)[0]:
        keys = tuple(repr(key.key) for key in path if isinstance(key, pytree.MappingKey))
        if isinstance(leaf, torch.Tensor):
            found.append((keys, leaf if leaf.layout == torch.strided else leaf.to_dense()))
        elif isinstance(leaf, numbers.Number):
            wide = torch.float64 if isinstance(leaf, float) else None
            found.append((keys, torch.tensor(leaf, dtype=wide, device="cpu")))
    found.sort(key=lambda pair: pair[0])  # a dictionary in another order is the same
    if len(found) == 1 and not found[0][0]:
        return {"the output": found[0][1]}
    return {
        f"output[{number}]" + "".join(f"[{key}]" for key in keys): leaf
        for number, (keys, leaf) in enumerate(found)
    }


def same_bits(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same number for number, NaN and dtypes included."""
    pairs = zip(one.every, other.every, strict=False)
    return len(one.outputs) == len(other.outputs) and all(
        a.shape == b.shape and a.dtype == b.dtype and _are_equal(a, b) for a, b in pairs
    )


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a shape are the same number for number, NaN included."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def dtype_of(arguments: Arguments) -> torch.dtype:
    """The coarsest floating dtype of the arguments, or of the parts of complex ones."""
    found = [
        v.dtype.to_real() if v.is_complex() else v.dtype
        for v in arguments.values
        if v.is_floating_point() or v.is_complex()
    ]
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
