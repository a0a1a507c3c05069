"""`Flow`: a mode of torch functions that follows parameters to the loss, and sees what cuts them.

Each tensor carries two sets. *Live* are the leaves that its gradient reaches; *cuts* are the
places before it at which a leaf was lost. A function that takes a live tensor and gives one without
history makes a cut; what is computed of that keeps it. So the cuts that a loss depends on are those
that matter, and what a program computes for its log is none of them. Sets are the bits of an
integer: a step of a thousand parameters and ten thousand functions takes unions alone.

What runs unseen (the ``apply`` of a custom Function, a wrapper of torch's own in C++) is bridged by
the graph of autograd, in whose nodes the sets are noted as well.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.internal.torch import COMPILER, leave_function_mode, storage_of

__all__ = ["NOTE", "Cut", "Flow", "bits"]

NOTE = "pullback.training"
"""The key of what is noted in a node: live, cuts, operation and place."""

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = str(Path(__file__).resolve().parents[2]) + os.sep
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
# Of a tensor they take shape, dtype or the gradient that lies beside it, and no value.
_VALUELESS = frozenset({"grad", "new_zeros", "new_ones", "new_empty", "new_full", "size", "shape"})
_COMPUTED = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})  # attributes that compute
_LEAVING = frozenset(
    {"item", "tolist", "numpy", "__float__", "__int__", "__complex__", "__index__", "__array__",
     "__dlpack__", "data_ptr"}
)  # fmt: skip
# By these the author says that he stops a gradient; other functions lose it by the way.
_EXPLICIT = frozenset({"detach", "detach_", "data"})


@dataclass
class Cut:
    """Where leaves lose their gradient.

    Arguments:
        operation: what cuts, for example ``".detach()"``.
        place: ``"file:line"`` in code that is not torch's.
        quiet: whether it was cut only since no gradients were recorded there.
        leaves: bits of the leaves that were lost.
        left: whether a value of it has left torch, as a number or an array.
    """

    operation: str
    place: str
    quiet: bool
    leaves: int = 0
    left: bool = False


class _Origin:
    """What is known of one tensor: a weak reference to it, its sets, and whether it had history."""

    __slots__ = ("cuts", "live", "tensor", "tracked")

    def __init__(self, tensor: Any, live: int, cuts: int, *, tracked: bool) -> None:
        self.tensor, self.live, self.cuts, self.tracked = tensor, live, cuts, tracked


class Flow(TorchFunctionMode):
    """Follows leaves through the functions of torch while it is entered.

    Arguments:
        on_backward: called with the roots before a backward pass starts from them.

    Attributes:
        paused: nothing is looked at.
        cuts: every cut, by the number of its bit.
        reached: bits of the leaves that a backward pass reached.
        decisive: bits of the cuts that a backward pass depended on.
        roots: how many backward passes were seen.
        seen: how many functions were looked at since that was last set to zero.
        fault: why nothing is followed any more, or an empty text.
    """

    def __init__(self, on_backward: Callable[[list[Any]], None] = lambda roots: None) -> None:
        super().__init__()
        self._on_backward = on_backward
        self.paused = self.entered = False
        self.cuts: list[Cut] = []
        self.reached = self.decisive = 0
        self.roots = self.seen = 0
        self.fault = ""
        self._numbers: dict[tuple[str, str], int] = {}
        self._origins: dict[int, _Origin] = {}
        self._bits: dict[int, tuple[Any, int]] = {}
        self._written: dict[int, int] = {}  # storage -> cuts of what was written there unseen
        self._count = 0
        self._thread = 0
        self._stance: Any = None

    def enter(self) -> None:
        """Follow what this thread runs from now on; what is compiled runs eagerly meanwhile."""
        if not self.entered and not self.fault:
            self.entered, self._thread = True, threading.get_ident()
            self.__enter__()

    def leave(self) -> None:
        """Look at nothing any more, whatever other modes were entered since."""
        if self.entered and self._thread == threading.get_ident():
            leave_function_mode(self)
            self.entered = False
            self._origins.clear()
            self._written.clear()
            if self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None

    def run_eagerly(self) -> None:
        """Have what is compiled run eagerly, where the compiler is loaded (it takes seconds)."""
        # torch 2.7 makes tensors while the compiler is imported, before it has a stance.
        loaded = hasattr(sys.modules.get(COMPILER), "set_stance")
        if self.entered and self._stance is None and loaded:
            self._stance = torch.compiler.set_stance("force_eager")

    def bit(self, leaf: Any) -> int:
        """The bit of a leaf."""
        known = self._bits.get(id(leaf))
        if known is None or known[0]() is not leaf:
            known = self._bits[id(leaf)] = weakref.ref(leaf), 1 << self._count
            self._count += 1
        return known[1]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._stance is None:
            self.run_eagerly()
        if self.paused or self.fault:
            return func(*args, **kwargs)
        name = _name(func)
        if name in ("backward", "grad") and not name.startswith("__"):
            self._guard(self._start, name, func, args, kwargs)
        output = func(*args, **kwargs)
        self.seen += 1
        if name not in _VALUELESS and not name.endswith("_like"):
            self._guard(self._note, name, func, args, kwargs, output)
        return output

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """The program runs on whatever is met here."""
        try:
            action(*arguments)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"

    def _start(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "grad" and getattr(func, "__module__", "") != "torch.autograd":
            return
        first = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        roots = list(tensors_in((first,)))
        live, cuts = self._union(roots)
        self.reached |= live
        self.decisive |= cuts
        self.roots += 1
        if name == "backward":
            self._on_backward(roots)

    def _note(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        given = list(tensors_in(args))
        if kwargs:
            given.extend(tensors_in(kwargs.values()))
        writes = _writes(name, func, kwargs)
        live, cuts = self._union(given)
        if not live and not cuts:
            if self._written and not writes:
                self._forget(given, output)
            return
        if name in _LEAVING:
            self._leaves(name, live, cuts)
            return
        made = list(tensors_in((output,)))
        if writes:
            self._write(name, args, kwargs)
            made += [kwargs["out"]] if isinstance(kwargs.get("out"), torch.Tensor) else []
            made += [args[0]] if args and isinstance(args[0], torch.Tensor) else []
        elif self._written:
            self._forget(given, output)
        for tensor in made:
            self._record(tensor, name, live, cuts)

    def _record(self, tensor: Any, name: str, live: int, cuts: int) -> None:
        tracked = tensor.requires_grad
        lost = 0 if tracked else live
        node = _node_of(tensor) if tracked else None
        if tracked and node is None:
            # A view that is made where no gradients are recorded says that it requires one, and
            # keeps it for itself: none of it reaches what it is a view of.
            lost = live & ~self.bit(tensor)
        if lost:
            cuts |= self._cut(name, lost)
        number = id(tensor)
        origin = _Origin(None, live & ~lost, cuts, tracked=tracked)
        origin.tensor = weakref.ref(tensor, lambda _, origin=origin: self._drop(number, origin))
        self._origins[number] = origin
        if node is not None and NOTE not in node.metadata:
            node.metadata[NOTE] = (live, cuts, name, _place()[0])

    def _drop(self, number: int, origin: _Origin) -> None:
        if self._origins.get(number) is origin:
            del self._origins[number]

    def _cut(self, name: str, live: int) -> int:
        place, checkpointed = _place()
        recorded = torch.is_grad_enabled()
        quiet = not recorded and name not in _EXPLICIT
        operation = "a reentrant checkpoint of inputs that need no gradient"
        if not (quiet and checkpointed):
            operation = _spelled(name) + (" where no gradients are recorded" if quiet else "")
        number = self._numbers.get((operation, place))
        if number is None:
            number = self._numbers[operation, place] = len(self.cuts)
            self.cuts.append(Cut(operation, place, quiet))
        self.cuts[number].leaves |= live
        return 1 << number

    def _leaves(self, name: str, live: int, cuts: int) -> None:
        cuts |= self._cut(name, live) if live else 0
        for number in bits(cuts):
            self.cuts[number].left = True

    def _write(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Values were written to memory that another tensor may share, which sees no history."""
        target = kwargs.get("out", args[0] if args else None)
        if not isinstance(target, torch.Tensor):
            return
        values = [t for t in tensors_in((*args[1:], *kwargs.values())) if t is not target]
        live, cuts = self._union(values)
        if live:
            cuts |= self._cut(name, live)
        if cuts:
            place = storage_of(target)
            self._written[place] = self._written.get(place, 0) | cuts

    def _forget(self, given: list[Any], output: Any) -> None:
        """What lies in new memory is not what was written to the old at its place."""
        old = {storage_of(tensor) for tensor in given}
        for tensor in tensors_in((output,)):
            place = storage_of(tensor)
            if place not in old:
                self._written.pop(place, None)

    def _union(self, tensors: Iterable[Any]) -> tuple[int, int]:
        live = cuts = 0
        for tensor in tensors:
            its_live, its_cuts = self.origin(tensor)
            live |= its_live
            cuts |= its_cuts
        return live, cuts

    def origin(self, tensor: Any) -> tuple[int, int]:
        """The bits of the leaves that a tensor's gradient reaches, and of the cuts before it."""
        origin = self._origins.get(id(tensor))
        if origin is not None and origin.tensor() is not tensor:
            origin = None
        cuts = 0 if origin is None else origin.cuts
        if not tensor.requires_grad:
            return 0, cuts | self._written_to(tensor)
        node = _node_of(tensor)
        if node is None:
            own = self.bit(tensor)
            others = [n for n in bits(self._written_to(tensor)) if self.cuts[n].leaves & ~own]
            return own, cuts | sum(1 << number for number in others)
        if origin is not None and origin.tracked:
            return origin.live, cuts
        # It came out of what was not seen: a custom Function, whose forward records nothing.
        kept = sum(1 << number for number in bits(cuts) if not self.cuts[number].quiet)
        live, more = self._behind(node)
        return live, kept | more

    def _written_to(self, tensor: Any) -> int:
        return self._written.get(storage_of(tensor), 0) if self._written else 0

    def _behind(self, node: Any) -> tuple[int, int]:
        """The sets of the nearest nodes in which they are noted."""
        live = cuts = 0
        waiting, seen = [node], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            note = node.metadata.get(NOTE)
            leaf = getattr(node, "variable", None)
            if note is not None:
                live, cuts = live | note[0], cuts | note[1]
            elif isinstance(leaf, torch.Tensor):
                live |= self.bit(leaf)
            else:
                waiting.extend(following for following, _ in node.next_functions)
        return live, cuts


def _node_of(tensor: Any) -> Any:
    """The node of the graph that made a tensor; ``None`` of a leaf.

    Of a view that was made where no gradients are recorded, and written to since, torch refuses to
    say: it is a leaf.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def bits(number: int) -> Iterator[int]:
    """The places of the ones of a number.

    Example:
        >>> list(bits(0b1010))
        [1, 3]
    """
    while number:
        last = number & -number
        yield last.bit_length() - 1
        number ^= last


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors in nested lists, tuples and dictionaries."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _name(func: Any) -> str:
    """The name of a function; of an attribute that is read or set, its own."""
    name = getattr(func, "__name__", "") or str(func)
    if name in ("__get__", "__set__"):
        attribute = getattr(func.__self__, "__name__", name)
        return attribute if attribute in _COMPUTED else "shape"
    return name.partition(".")[0]


def _writes(name: str, func: Any, kwargs: dict[str, Any]) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
    put = name == "__setitem__" or getattr(func, "__name__", "") == "__set__"
    return in_place or augmented or put or kwargs.get("out") is not None


def _spelled(name: str) -> str:
    if name in ("data", "T", "real", "imag"):
        return f".{name}"
    return f"{name}()" if name.startswith("_") or name == "tensor" else f".{name}()"


def _place() -> tuple[str, bool]:
    """The innermost ``file:line`` that is not torch's or ours, and whether in a checkpoint."""
    frame, checkpointed = inspect.currentframe(), False
    while frame is not None:
        file = frame.f_code.co_filename
        checkpointed = checkpointed or file == _CHECKPOINT
        if not file.startswith((_TORCH, _OWN, "<")):
            return f"{file}:{frame.f_lineno}", checkpointed
        frame = frame.f_back
    return "", checkpointed
