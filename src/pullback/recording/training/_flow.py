"""`Flow`: a mode of torch functions that follows parameters to the loss, and sees what cuts them.

Each tensor has two sets. *Live* are the leaves that its gradient reaches: the graph of autograd
tells them. *Cuts* are the places before it at which a leaf was lost, of which the graph tells
nothing. A function that takes a live tensor and gives one without history makes a cut; what is
computed of that keeps it. So the cuts that a loss depends on are those that matter, and what a
program computes for its log is none of them. Sets are the bits of an integer: a step of a thousand
parameters and ten thousand functions takes unions alone.

The cuts of a tensor with history are noted in the node of the graph that made it, and those of one
without beside it. So what runs unseen (the ``apply`` of a custom Function, a wrapper of torch's own
in C++) is bridged: what is behind its nodes is asked.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from pullback.internal.torch import COMPILER, disable_torch_function, leave_function_mode
from pullback.recording.training._leaves import Leaves
from pullback.recording.training._stops import NOTE, Stops

__all__ = ["Cut", "Flow"]

_PATIENCE = 20_000  # functions of torch without a step: a program that does not train
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
        bit: the set that holds it alone.
        operation: what cuts, for example ``".detach()"``.
        place: ``"file:line"`` in code that is not torch's.
        leaves: bits of the leaves that were lost.
        left: whether a value of it has left torch, as a number or an array.
    """

    bit: int
    operation: str
    place: str
    leaves: int = 0
    left: bool = False


class Flow(TorchFunctionMode):
    """Follows leaves through the functions of torch while it is entered.

    Arguments:
        leaves: of the program.

    Attributes:
        stops: where gradients stop in the backward passes that start meanwhile.
        paused: nothing is looked at.
        cuts: every cut, by its operation and place.
        reached: bits of the leaves that a backward pass reached.
        decisive: bits of the cuts that a backward pass depended on.
        roots: how many backward passes were seen.
        patience: after how many functions nothing is followed any more.
        fault: why nothing is followed any more, or an empty text.
    """

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        self._leaves = leaves
        self.stops = Stops(lambda node: self._behind(node)[0])
        self.paused = False
        self.entered = 0  # by which thread
        self.cuts: dict[tuple[str, str], Cut] = {}
        self.reached = self.decisive = self.roots = 0
        self.patience: float = _PATIENCE
        self.fault = ""
        self._sets = object()  # the key of the sets in a node: another watch has others
        self._quiet = 0  # cuts that are some only since no gradients are recorded there
        self._lost: _Noted = {}  # of tensors, the cuts before them
        self._written: _Noted = {}  # of storages, those of what was written there unseen
        self._seen = 0
        self._eager = False
        self._entered = ExitStack()

    def enter(self) -> None:
        """Follow what this thread runs from now on; what is compiled runs eagerly meanwhile."""
        if not self.entered and not self.fault:
            self.entered = threading.get_ident()
            self.__enter__()
            self._entered.callback(leave_function_mode, self)
            self._entered.enter_context(register_module_forward_pre_hook(self._before_forward))

    def leave(self) -> None:
        """Look at nothing any more, whatever other modes were entered since."""
        self.stops.clear()
        if self.entered == threading.get_ident():
            self.entered = 0
            self._entered.close()
            self._lost.clear()
            self._written.clear()
            self._eager = False

    def _before_forward(self, module: Any, given: Any) -> None:
        self._leaves.meet(module)
        self._run_eagerly()
        if self._seen > self.patience:
            self.leave()

    def _run_eagerly(self) -> None:
        """Have what is compiled run eagerly, where the compiler is loaded (it takes seconds)."""
        # torch 2.7 makes tensors while the compiler is imported, before it has a stance.
        loaded = hasattr(sys.modules.get(COMPILER), "set_stance")
        if loaded and not self._eager:
            self._eager = True
            stance = torch.compiler.set_stance("force_eager")
            self._entered.callback(stance.__exit__, None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._run_eagerly()
        if self.paused or self.fault:
            return func(*args, **kwargs)
        self._seen += 1
        # Before, since it may take the history of what it is given.
        sets = self._guard(self._before, func, args, kwargs)
        output = func(*args, **kwargs)
        if sets is not None and any(sets):
            self._guard(self._after, func, args, kwargs, sets, output)
        return output

    def _guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """The program runs on whatever is met here, which is nothing to the modes around."""
        try:
            with disable_torch_function():
                return action(*arguments)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"

    def _before(self, func: Any, args: Any, kwargs: Any) -> tuple[int, int] | None:
        """The sets of all that a function is given; of what takes no value of it, none."""
        name = _name(func)
        if name == "backward" or (
            name == "grad" and getattr(func, "__module__", "") == "torch.autograd"
        ):
            roots = [args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))]
            live, cuts = self._union(roots)
            self.reached |= live
            self.decisive |= cuts
            self.roots += 1
            if name == "backward":
                self.stops.watch([_node_of(root) for root in tensors_in(roots)])
        if name in _VALUELESS or name.endswith("_like"):
            return None
        return self._union((args, kwargs))

    def _after(self, func: Any, args: Any, kwargs: Any, sets: tuple[int, int], output: Any) -> None:
        name, (live, cuts) = _name(func), sets
        if name in _LEAVING:
            for cut in self._cuts_of(cuts | self._cut(name, live)):
                cut.left = True
            return
        made = list(tensors_in((output,)))
        target = kwargs.get("out", args[0] if args else None)
        if isinstance(target, torch.Tensor) and _writes(name, func, kwargs):
            # To memory that another tensor may share, which sees no history.
            given = [t for t in tensors_in((args, kwargs)) if t is not target]
            live_there, cuts_there = self._union(given)
            cuts_there |= self._cut(name, live_there)
            if cuts_there:
                storage = target.untyped_storage()
                cuts_there |= _noted(self._written, storage)
                self._written[id(storage)] = weakref.ref(storage), cuts_there
            made.append(target)
        for tensor in made:
            self._record(tensor, name, live, cuts)

    def _record(self, tensor: Any, name: str, live: int, cuts: int) -> None:
        node = _node_of(tensor)
        if node is None:
            # A view that is made where no gradients are recorded says that it requires one, and
            # keeps it for itself: none of it reaches what it is a view of.
            own = self._leaves[tensor].bit if tensor.requires_grad else 0
            cuts |= self._cut(name, live & ~own)
            if cuts:
                self._lost[id(tensor)] = weakref.ref(tensor), cuts
        elif NOTE not in node.metadata:
            live, before = self._behind(node)
            node.metadata[self._sets] = live, before | cuts
            node.metadata[NOTE] = name, _place()[0]

    def _cut(self, name: str, live: int) -> int:
        """The bit of a cut, none where no leaf is lost."""
        if not live:
            return 0
        place, checkpointed = _place()
        quiet = not torch.is_grad_enabled() and name not in _EXPLICIT
        operation = "a reentrant checkpoint of inputs that need no gradient"
        if not (quiet and checkpointed):
            operation = _spelled(name) + (" where no gradients are recorded" if quiet else "")
        new = Cut(1 << len(self.cuts), operation, place)
        cut = self.cuts.setdefault((operation, place), new)
        cut.leaves |= live
        self._quiet |= cut.bit if quiet else 0
        return cut.bit

    def _cuts_of(self, cuts: int) -> Iterator[Cut]:
        return (cut for cut in self.cuts.values() if cut.bit & cuts)

    def _union(self, values: Iterable[Any]) -> tuple[int, int]:
        live = cuts = 0
        for tensor in tensors_in(values):
            its_live, its_cuts = self._origin(tensor)
            live |= its_live
            cuts |= its_cuts
        return live, cuts

    def _origin(self, tensor: Any) -> tuple[int, int]:
        """The bits of the leaves that a tensor's gradient reaches, and of the cuts before it."""
        cuts = _noted(self._lost, tensor)
        node = _node_of(tensor)
        if node is not None:
            live, before = self._behind(node)
            # It may come out of a custom Function, whose forward records nothing.
            return live, before | (cuts if NOTE in node.metadata else cuts & ~self._quiet)
        written = _noted(self._written, tensor.untyped_storage()) if self._written else 0
        if not tensor.requires_grad:
            return 0, cuts | written
        own = self._leaves[tensor].bit
        return own, cuts | sum(cut.bit for cut in self._cuts_of(written) if cut.leaves & ~own)

    def _behind(self, node: Any) -> tuple[int, int]:
        """The sets of all nodes behind a node, noted in each: a graph does not change."""
        waiting = [] if self._sets in node.metadata else [node]
        while waiting:
            last = waiting[-1]
            leaf = getattr(last, "variable", None)
            live, cuts = 0 if leaf is None else self._leaves[leaf].bit, 0
            for other, _ in last.next_functions:
                sets = (0, 0) if other is None else other.metadata.get(self._sets)
                if sets is None:
                    waiting.append(other)
                else:
                    live, cuts = live | sets[0], cuts | sets[1]
            if waiting[-1] is last:  # all that is behind it is known
                waiting.pop().metadata[self._sets] = live, cuts
        return node.metadata[self._sets]


_Noted = dict[int, tuple[Any, int]]
"""The id of an object -> a weak reference to it, since another may have the id later, and cuts."""


def _noted(notes: _Noted, thing: Any) -> int:
    reference, cuts = notes.get(id(thing), (None, 0))
    return cuts if reference is not None and reference() is thing else 0


def _node_of(tensor: Any) -> Any:
    """The node of the graph that made a tensor; ``None`` of a leaf.

    Of a view that was made where no gradients are recorded, and written to since, torch refuses to
    say: it is a leaf.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


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
