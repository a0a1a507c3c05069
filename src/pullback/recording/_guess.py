"""Guess arguments for a forward from the names, annotations and defaults of its parameters."""

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["guesses"]

# What a parameter of this name usually is. The first fitting word wins; a plain name is a tensor.
_NUMBERS: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    (("dim", "axis", "dims"), (-1, 0)),
    (("eps", "epsilon", "tol"), (1e-5,)),
    (("training", "train", "inplace", "is_", "use_", "ensure", "causal"), (False, True)),
    (("n_iter", "iters", "niter", "num_iter", "max_iter"), (30,)),
    (("bits", "nbits", "k_bits"), (4,)),
    (("kernel_size", "kernel"), (2, (2, 2))),
    (("stride", "dilation", "groups", "padding"), (1, (1, 1), 0)),
    (("num", "n", "k", "size", "length", "topk", "step", "steps", "order"), (2, 3, 1)),
    (("p", "nu", "power", "exponent", "degree"), (2, 2.5, 0.5)),
    (("reduction",), ("mean", "sum", "none")),
    (("shape",), ((3, 4),)),
    (("dtype",), (torch.float64,)),
    (("device",), ("cpu",)),
)
_FACTORS = ("alpha", "lambda", "lambd", "scale", "factor", "temperature", "tau", "beta", "gamma",
            "coeff", "slope", "threshold", "margin", "ratio", "weight_decay", "momentum",
            "min", "max", "low", "high", "bound", "clip", "sigma", "lr", "grl")  # fmt: skip
_PLAIN: dict[str, list[Any]] = {
    "bool": [False, True], "int": [-1, 1, 2, 3], "float": [0.5, 2.0],
    "str": ["mean", "sum", "none", ""],
}  # fmt: skip
_INDICES = ("index", "indices", "idx", "label", "labels", "target", "targets", "y_true", "batch")
_MASKS = ("mask",)
_SHAPES = ((3, 4), (4, 4), (4,), (2, 3, 4), (2, 3, 3), (2, 3, 6, 6), (3, 1), ())
_LINEAR = {"weight": (4, 4), "w": (4, 4), "bias": (4,), "b": (4,), "running_mean": (4,)}
# One number for each channel, as norms have.
_PER_CHANNEL = ("weight", "w", "gain", "gamma", "beta", "scale", "bias", "b")


def guesses(
    parameters: Sequence[inspect.Parameter], known: Sequence[Mapping[int, Any]] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield argument tuples to try, the likeliest first.

    Arguments:
        parameters: the parameters of a forward, without the context.
        known: what calls of it hand over, position to value; the others are guessed.

    Yields:
        Positional arguments; floating tensors are float64. Which of them are differentiated is
        left to the checker, which asks backward.

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
            yield (*(item for value in chosen for item in _spread(value)), *tail)
        if len(known) == len(required):
            return  # the shape changes nothing


class _Many(tuple[Any, ...]):
    """The values of a ``*args`` parameter."""


def _spread(value: Any) -> tuple[Any, ...]:
    """The arguments of a parameter, where the package of the Function puts new tensors."""
    items, there = value if isinstance(value, _Many) else (value,), torch.get_default_device()
    return tuple(item.to(there) if isinstance(item, torch.Tensor) else item for item in items)


def _choices(
    item: inspect.Parameter, shape: tuple[int, ...], generator: torch.Generator
) -> list[Any]:
    if item.kind is item.VAR_POSITIONAL:
        return [_Many([_tensor(shape, generator) for _ in range(2)]), _Many()]
    annotated = _annotated(str(item.annotation), shape, generator)
    if annotated is not None:
        return annotated
    words = _words(item.name)
    name = item.name.lower()
    if words & set(_MASKS):
        return [torch.rand(shape, generator=generator) < 0.7, _tensor(shape, generator)]
    if words & set(_INDICES):
        return [_index(shape, generator), _tensor(shape, generator), _index((3,), generator)]
    for names, values in _NUMBERS:
        if name in names or words & {n for n in names if len(n) > 1}:
            return [*values, _tensor(shape, generator)]
    channels = [_positive(shape[-1:], generator)] if name in _PER_CHANNEL and shape[1:] else []
    if words & set(_FACTORS) or name in _FACTORS or name.rstrip("_") in _FACTORS:
        return [
            0.5,
            torch.tensor(0.5, dtype=torch.float64),
            *channels,
            _tensor(shape, generator),
            2,
        ]
    like_linear = [_tensor(_LINEAR[name], generator)] if name in _LINEAR else []
    return [
        *like_linear,
        *channels,
        _tensor(shape, generator),
        _positive(shape, generator),
        0.5,
        1,
        None,
    ]


def _annotated(
    annotation: str, shape: tuple[int, ...], generator: torch.Generator
) -> list[Any] | None:
    text = annotation.replace("typing.", "").replace("<class '", "").replace("'>", "")
    if text in _PLAIN:
        return _PLAIN[text]
    if text in ("torch.Tensor", "Tensor"):
        return [
            _tensor(shape, generator),
            _positive(shape, generator),
            _tensor((4, 4), generator),
            _index((3,), generator),
        ]
    return None


def _words(name: str) -> set[str]:
    return set(name.lower().strip("_").split("_"))


def _tensor(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _positive(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return 0.1 + 0.8 * torch.rand(shape, generator=generator, dtype=torch.float64)


def _index(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 3, shape, generator=generator)
