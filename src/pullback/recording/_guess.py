"""Guess arguments for a forward from the names, annotations and defaults of its parameters."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["guesses"]

_SHAPES = ((3, 4), (4, 4), (4,), (2, 3, 4), (2, 3, 3), (2, 3, 6, 6), (3, 1), ())
_Shape = tuple[int, ...]
_Make = Callable[[_Shape, torch.Generator], torch.Tensor]  # a tensor, where a shape is tried


def _tensor(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _positive(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return 0.1 + 0.8 * torch.rand(shape, generator=generator, dtype=torch.float64)


def _index(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 3, shape, generator=generator)


def _mask(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) < 0.7


def _channels(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    """One number for each channel, as norms have."""
    return _positive(shape[-1:], generator)


def _half(shape: _Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.tensor(0.5, dtype=torch.float64)


def _of_shape(*shape: int, make: _Make = _tensor) -> _Make:
    return lambda _, generator: make(shape, generator)


_ANY = (_tensor, _positive, 0.5, 1, None)
_TENSORS = (_tensor, _positive, _of_shape(4, 4), _of_shape(3, make=_index))
_ANNOTATED: dict[str, tuple[Any, ...]] = {
    "bool": (False, True), "int": (-1, 1, 2, 3), "float": (0.5, 2.0),
    "str": ("mean", "sum", "none", ""), "torch.Tensor": _TENSORS, "Tensor": _TENSORS,
}  # fmt: skip
_NAMED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("weight", "w"), (_of_shape(4, 4), _channels, *_ANY)),
    **dict.fromkeys(("bias", "b"), (_of_shape(4), _channels, *_ANY)),
    **dict.fromkeys(("gamma", "beta", "scale"), (0.5, _half, _channels, _tensor, 2)),
    "running_mean": (_of_shape(4), *_ANY),
    "gain": (_channels, *_ANY),
}
# What a parameter with such a word in its name usually is; the first row that fits.
_WORDS: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    (("mask", "masks", "valid", "converged", "keep", "active"), (_mask, _tensor)),
    (("index", "indices", "idx", "label", "labels", "target", "targets", "y_true", "batch"),
     (_index, _tensor, _of_shape(3, make=_index))),
    (("dim", "axis", "dims"), (-1, 0, _tensor)),
    (("eps", "epsilon", "tol"), (1e-5, _tensor)),
    (("training", "train", "inplace", "is_", "use_", "ensure", "causal"), (False, True, _tensor)),
    (("n_iter", "iters", "niter", "num_iter", "max_iter"), (30, _tensor)),
    (("bits", "nbits", "k_bits"), (4, _tensor)),
    (("kernel_size", "kernel"), (2, (2, 2), _tensor)),
    (("stride", "dilation", "groups", "padding"), (1, (1, 1), 0, _tensor)),
    (("num", "n", "k", "size", "length", "topk", "step", "steps", "order"), (2, 3, 1, _tensor)),
    (("p", "nu", "power", "exponent", "degree"), (2, 2.5, 0.5, _tensor)),
    (("reduction",), ("mean", "sum", "none", _tensor)),
    (("shape",), ((3, 4), _tensor)),
    (("dtype",), (torch.float64, _tensor)),
    (("device",), ("cpu", _tensor)),
    (("alpha", "lambda", "lambd", "scale", "factor", "temperature", "tau", "beta", "gamma",
      "coeff", "slope", "threshold", "margin", "ratio", "weight_decay", "momentum", "min", "max",
      "low", "high", "bound", "clip", "sigma", "lr", "grl"), (0.5, _half, _tensor, 2)),
)  # fmt: skip


def guesses(
    parameters: Sequence[inspect.Parameter], known: Sequence[Mapping[int, Any]] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield argument tuples to try for a forward without its context, the likeliest first.

    What calls of it are known to hand over, position to value, is not guessed. Floating tensors are
    float64. Which of them are differentiated is left to the checker, which asks backward.

    Example:
        >>> names = inspect.signature(lambda x, alpha: x).parameters.values()
        >>> first = next(guesses(list(names)))
        >>> tuple(first[0].shape), first[1]
        ((3, 4), 0.5)
    """
    positional = [item for item in parameters if item.kind is not item.KEYWORD_ONLY]
    for told in known:
        yield from _fitting(positional[: max(told) + 1], told, positional[max(told) + 1 :])
    required = [
        item
        for item in positional
        if item.default is item.empty or _words(item.name) & {"weight", "bias"}
    ]
    rest = positional[len(required) :]
    if any(item.default is item.empty for item in rest):
        required, rest = positional, []
    yield from _fitting(required, {}, rest)


def _fitting(
    required: Sequence[inspect.Parameter],
    known: Mapping[int, Any],
    rest: Sequence[inspect.Parameter],
) -> Iterator[tuple[Any, ...]]:
    """Arguments for the parameters that are required, and the defaults of the rest."""
    generator = torch.Generator().manual_seed(0)
    tail = [item.default for item in rest]
    if any(value is inspect.Parameter.empty for value in tail):
        return
    for shape in _SHAPES:
        with torch.device("cpu"):  # which is the generator's
            choices = [
                [known[k]] if k in known else _choices(item, shape, generator)
                for k, item in enumerate(required)
            ]
        for chosen in itertools.islice(itertools.product(*choices), 60):
            several = (
                value if item.kind is item.VAR_POSITIONAL else (value,)
                for item, value in zip(required, chosen, strict=True)
            )
            yield (*map(_put, itertools.chain(*several)), *tail)
        if len(known) == len(required):
            return  # the shape changes nothing


def _put(value: Any) -> Any:
    """Where the package of the Function puts new tensors."""
    return value.to(torch.get_default_device()) if isinstance(value, torch.Tensor) else value


def _choices(item: inspect.Parameter, shape: _Shape, generator: torch.Generator) -> list[Any]:
    """What a parameter may be, the likeliest first."""
    if item.kind is item.VAR_POSITIONAL:
        return [(_tensor(shape, generator), _tensor(shape, generator)), ()]
    annotation = str(item.annotation).replace("typing.", "")
    annotated = _ANNOTATED.get(annotation.replace("<class '", "").replace("'>", ""))
    named = _named(item.name.lower())
    if annotated is _TENSORS:  # which says nothing of its numbers, as a name may
        annotated = tuple(dict.fromkeys((*filter(callable, named), *_TENSORS)))
    choices = named or _ANY if annotated is None else annotated
    return [value(shape, generator) if callable(value) else value for value in choices]


def _named(name: str) -> tuple[Any, ...]:
    """What a parameter of this name usually is, the likeliest first; nothing where it says none."""
    if name in _NAMED:
        return _NAMED[name]
    words = _words(name)
    fitting = (
        found for names, found in _WORDS if name in names or words & {n for n in names if n[1:]}
    )
    return next(fitting, ())


def _words(name: str) -> set[str]:
    return set(name.lower().strip("_").split("_"))
