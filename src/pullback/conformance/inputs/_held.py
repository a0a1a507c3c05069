"""What a value holds: in containers, functions and objects, with the path that reaches it."""

import functools
import gc
import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pullback.internal._generators import PutBack, rewinds
from pullback.internal.torch import MODULE_STATE, function_of, storage_of, version_of

__all__ = [
    "ContextTensor",
    "containers_within",
    "context_tensors",
    "own_generators",
    "tensors_within",
]

_DEPTH = 7
_MOST = 20_000  # whatever holds more is no place for a generator or a tensor of the call
_STATE_OF_A_GPU = 16  # bytes, in the memory of the host
_LIBRARIES = ("builtins", "torch", "numpy")
_BASES = (*_LIBRARIES, "pullback", "typing", "functools", "types")  # classes that hold no state
_LARGE = ("torch", "numpy")  # whose functions name half of them


class _Held(NamedTuple):
    """A value, how it is reached, and whether a module of torch lies on the way."""

    path: str
    value: Any
    in_module: bool = False


def _held(value: Any, path: str = "", *, whole: bool = False) -> Iterator[_Held]:
    """The value, and all that it holds.

    Where the whole is asked for, also by way of classes, of the global variables that functions
    name, and of what torch itself keeps in a module.
    """
    seen: set[int] = set()
    stack = [(_Held(path, value), _DEPTH)]
    while stack and len(seen) < _MOST:
        found, depth = stack.pop()
        yield found
        if isinstance(found.value, torch.Tensor) or not depth or id(found.value) in seen:
            continue
        seen.add(id(found.value))
        module = _is_module(found.value)
        inside = found.in_module or module
        # However deep its layers are nested, what a module learns is its own.
        children = [
            (_Held(found.path + step, child, inside), depth - (not (module or _is_module(child))))
            for child, step in _children(found.value, whole)
        ]
        stack.extend(reversed(children))


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


def _children(value: Any, whole: bool) -> Iterator[tuple[Any, str]]:
    """What a value refers to, with the step that reaches it."""
    if isinstance(value, Mapping):
        yield from ((item, f"[{key!r}]") for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((item, f"[{index}]") for index, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((item, "{...}") for item in value)
    elif isinstance(value, types.FunctionType):
        with suppress(ValueError):  # a cell that is not filled yet
            named = inspect.getclosurevars(value)
            yield from ((item, f" closure over {n}") for n, item in named.nonlocals.items())
            if whole and not _is_of(value, _LARGE):
                yield from ((item, f" global {n}") for n, item in named.globals.items())
    elif isinstance(value, functools.partial):
        yield from ((value.args, ".args"), (value.keywords, ".keywords"), (value.func, ".func"))
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield value.__self__, " bound to an object"
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__, ""
    elif isinstance(value, (Iterator, deque)):
        # A generator refers to its locals, an iterator and a deque to what they have left.
        yield from ((item, " inside") for item in gc.get_referents(value))
    elif isinstance(value, type):
        own = (kind for kind in value.__mro__ if whole and not _is_of(kind, _BASES))
        yield from ((item, f".{name}") for kind in own for name, item in vars(kind).items())
    elif isinstance(value, torch.nn.Module) or not _is_of(type(value), _LIBRARIES):
        hidden = MODULE_STATE if isinstance(value, torch.nn.Module) and not whole else ()
        yield from ((item, f".{name}") for name, item in _attributes(value) if name not in hidden)
        if whole:
            yield type(value), ""
            yield from _learnt(value)


def _learnt(value: Any) -> Iterator[tuple[torch.Tensor, str]]:
    """The parameters and buffers of all layers of a module, however deep these lie."""
    kind = torch.nn.Module
    with suppress(AttributeError):  # one that was never made ready
        for named in (kind.named_parameters, kind.named_buffers) * isinstance(value, kind):
            yield from ((tensor, f".{name}") for name, tensor in named(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its dictionary and in slots; no property is run."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in vars(kind).get("__slots__", ()):
            slot = vars(kind).get(name)
            if isinstance(slot, types.MemberDescriptorType):
                with suppress(AttributeError):  # not filled
                    yield name, slot.__get__(value)


def _is_of(made: Any, rooms: Sequence[str]) -> bool:
    return (getattr(made, "__module__", None) or "").partition(".")[0] in rooms


# Tensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextTensor:
    """What a context holds outside of what save_for_backward saved."""

    path: str  # how it is reached, for example ``"ctx.cache['x']"``
    value: torch.Tensor | Any  # a tensor, or an array of numpy
    # False where it may live longer than the call: an array of numpy, which may share a tensor's
    # memory, what a module of torch keeps as a plain attribute, and what an argument held before.
    # A generator's state, which a forward that runs again needs, is no data of the call either.
    of_the_call: bool


def tensors_within(given: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
    """The tensors that callables and objects reach by themselves, with their versions.

    Whoever made them keeps their tensors and frees them.
    """
    every = (found.value for value in given for found in _held(value, whole=True))
    return [(value, version_of(value)) for value in every if isinstance(value, torch.Tensor)]


def containers_within(function: Any) -> Iterator[tuple[str, Any]]:
    """What a Function may keep from call to call: dictionaries, lists and sets.

    Yields:
        How it is reached, in which ``F`` is the Function, as code unless closures lead there, and
        the container.
    """
    for found in _held(function, whole=True):
        if type(found.value) in (dict, list, set) and found.value:
            owner, _, name = found.path.partition(" global ")
            yield f"F{owner}" + (f".__globals__[{name!r}]" if name else ""), found.value


def context_tensors(
    node: Any, before: Sequence[tuple[torch.Tensor, int]] = ()
) -> Iterator[ContextTensor]:
    """Tensors, and arrays that numpy shares, held by the attributes of a node.

    Parameters and buffers of modules are left alone.

    Arguments:
        node: an autograd node of a custom Function, which is its context.
        before: what the arguments held before the call, by `tensors_within`.
    """
    unchanged = [tensor for tensor, version in before if version_of(tensor) == version]
    kept = set(map(id, unchanged)) | set(map(_memory_of, unchanged)) - {None}
    for name, value in vars(node).items():
        if name == "__pullback__" and _is_ours(node):
            # Inputs that the engine sets aside with their versions for a second derivative: it
            # refuses where one was changed, sets none aside behind saved-tensor hooks, and lets
            # them go with backward (`pullback.tensor.call._application`).
            continue
        for path, held, in_module in _held(value, f"ctx.{name}"):
            if isinstance(held, torch.Tensor):
                given = id(held) in kept or _memory_of(held) in kept  # or a view of it
                lives_on = in_module or given or _is_generator_state(held)
                yield ContextTensor(path, held, not lives_on)
            elif type(held).__module__ == "numpy" and type(held).__name__ == "ndarray":
                yield ContextTensor(path, held, of_the_call=False)


def _memory_of(tensor: torch.Tensor) -> tuple[int] | None:
    """What all views of one memory have in common; ``None`` of a tensor that has none to speak of.

    A number by itself may be that of an object.
    """
    strided = tensor.layout is torch.strided and tensor.numel() > 0
    return (storage_of(tensor),) if strided else None


def _is_ours(node: Any) -> bool:
    """Whether the engine of `pullback.tensor` made the node, not an author who took its name."""
    made_by = getattr(function_of(node), "__module__", "")
    return made_by.startswith("pullback.tensor.")


def _is_generator_state(value: torch.Tensor) -> bool:
    """Whether a tensor is what `torch.get_rng_state` gives, of whatever device."""
    if value.dtype != torch.uint8 or value.ndim != 1 or value.is_cuda:
        return False
    try:
        torch.Generator().set_state(value.detach().clone())
    except RuntimeError:
        return torch.cuda.is_available() and len(value) == _STATE_OF_A_GPU
    return True


# Generators ---------------------------------------------------------------------------------------


def own_generators(target: Any) -> list[PutBack]:
    """What puts each generator that a Function or callable reaches by itself back to where it is.

    Those are the generators that no seed of the caller's reaches.

    Example:
        >>> source = torch.Generator().manual_seed(3)
        >>> def noise(x):
        ...     return torch.rand(x.shape, generator=source)
        >>> [put_back] = own_generators(noise)
        >>> first = noise(torch.ones(2))
        >>> _ = put_back()
        >>> bool((first == noise(torch.ones(2))).all())
        True
    """
    reached = {id(found.value): found.value for found in _held(target, whole=True)}
    every = (rewinds(value) for value in reached.values())
    return [put_back for put_back in every if put_back is not None]
