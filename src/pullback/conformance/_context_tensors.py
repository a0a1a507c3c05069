"""Find tensors that a context holds outside of what save_for_backward saved."""

import functools
import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from pullback.internal.torch import MODULE_STATE, function_of, version_of

__all__ = ["ContextTensor", "context_tensors", "tensors_within"]

_DEPTH = 5
_STATE_OF_A_GPU = 16  # bytes, in the memory of the host


@dataclass(frozen=True)
class ContextTensor:
    """What a context holds outside of what save_for_backward saved.

    Attributes:
        path: how it is reached, for example ``"ctx.cache['x']"``.
        value: a tensor, or an array of numpy.
        of_the_call: False where it may live longer than the call: an array of numpy, which may
            share a tensor's memory, what a module of torch keeps as a plain attribute, and what
            an argument held before. A generator's state, which a forward that runs again
            needs, is no data of the call either.
    """

    path: str
    value: torch.Tensor | Any
    of_the_call: bool


def tensors_within(given: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
    """The tensors that callables and objects reach by themselves, with their versions.

    Whoever made them keeps their tensors and frees them.
    """
    roots = [root for value in given for root in (value, *_named_by(value))]
    held = (found.value for root in roots for found in _search(root, "", _DEPTH, set(), whole=True))
    return [(value, version_of(value)) for value in held if isinstance(value, torch.Tensor)]


def _named_by(value: Any) -> list[Any]:
    """The global variables that a function names."""
    if not isinstance(value, types.FunctionType):
        return []
    known = value.__globals__
    return [known[name] for name in value.__code__.co_names if name in known]


def context_tensors(
    node: Any, before: Sequence[tuple[torch.Tensor, int]] = ()
) -> Iterator[ContextTensor]:
    """Tensors, and arrays that numpy shares, held by the attributes of a node.

    Looks into containers, iterators, dataclasses, closures, partial functions, bound methods and
    plain objects, and at the plain attributes of torch's modules: parameters and buffers are left
    alone.

    Arguments:
        node: an autograd node of a custom Function, which is its context.
        before: what the arguments held before the call, by `tensors_within`.
    """
    kept = {id(tensor) for tensor, version in before if version_of(tensor) == version}
    for name, value in vars(node).items():
        if name == "__pullback__" and _is_ours(node):
            # Inputs that the engine sets aside with their versions for a second derivative: it
            # refuses where one was changed, sets none aside behind saved-tensor hooks, and lets
            # them go with backward (`pullback.tensor._kept`).
            continue
        for held in _search(value, f"ctx.{name}", _DEPTH, set()):
            yield replace(held, of_the_call=held.of_the_call and id(held.value) not in kept)


def _is_ours(node: Any) -> bool:
    """Whether the engine of `pullback.tensor` made the node, not an author who took its name."""
    made_by = getattr(function_of(node), "__module__", "")
    return made_by.startswith("pullback.tensor.")


def _search(
    value: Any,
    path: str,
    depth: int,
    seen: set[int],
    *,
    of_the_call: bool = True,
    whole: bool = False,
) -> Iterator[ContextTensor]:
    if isinstance(value, torch.Tensor) or _is_array(value):
        numbers = isinstance(value, torch.Tensor) and not _is_generator_state(value)
        yield ContextTensor(path, value, of_the_call and numbers)
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    of_the_call = of_the_call and not isinstance(value, torch.nn.Module)
    if whole and isinstance(value, torch.nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield ContextTensor(path, tensor, of_the_call=False)
    for child, step in _children(value):
        yield from _search(
            child, f"{path}{step}", depth - 1, seen, of_the_call=of_the_call, whole=whole
        )


def _children(value: Any) -> Iterator[tuple[Any, str]]:
    """What a container, dataclass or function holds, with the step that reaches it."""
    if isinstance(value, Mapping):
        yield from ((item, f"[{key!r}]") for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((item, f"[{index}]") for index, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((item, "{...}") for item in value)
    elif isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=True):
            try:
                yield cell.cell_contents, f" closure over {name}"
            except ValueError:  # a cell that is not filled yet
                continue
    elif isinstance(value, functools.partial):
        yield (value.args, ".args")
        yield (value.keywords, ".keywords")
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield value.__self__, " bound to an object"
    elif isinstance(value, torch.nn.Module):
        plain = (entry for entry in vars(value).items() if entry[0] not in MODULE_STATE)
        yield from ((item, f".{name}") for name, item in plain)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((getattr(value, f.name, None), f".{f.name}") for f in fields(value))
    elif isinstance(value, (Iterator, deque)):
        # A generator refers to its locals, an iterator and a deque to what they have left.
        yield from ((item, " inside") for item in gc.get_referents(value))
    elif _is_plain(value):
        yield from ((item, f".{name}") for name, item in _attributes(value))


def _is_plain(value: Any) -> bool:
    """Whether a value is an object of somebody's class, with attributes of its own."""
    if isinstance(value, (type, types.ModuleType)):
        return False
    return type(value).__module__.partition(".")[0] not in ("builtins", "torch", "numpy")


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, in its dictionary and in slots; no property is run."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in vars(kind).get("__slots__", ()):
            slot = vars(kind).get(name)
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:  # not filled
                    continue


def _is_generator_state(value: torch.Tensor) -> bool:
    """Whether a tensor is what `torch.get_rng_state` gives, of whatever device."""
    if value.dtype != torch.uint8 or value.ndim != 1 or value.is_cuda:
        return False
    try:
        torch.Generator().set_state(value.detach().clone())
    except RuntimeError:
        return torch.cuda.is_available() and len(value) == _STATE_OF_A_GPU
    return True


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
