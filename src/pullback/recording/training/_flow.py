"""`Flow`: a mode of torch functions that follows parameters to the loss, and sees what cuts them.

What lies before a tensor is a set, the bits of an integer: the leaves that its gradient reaches, of
which the graph of autograd tells, and the cuts at which others were lost, of which it does not. A
function that takes what reaches a leaf and gives a tensor without history makes a cut; what is
computed of that keeps it. So the cuts before a loss are those that matter, and what a program
computes for its log is none. Sets are noted in the nodes of the graph, cuts before a tensor without
history beside it: so what runs unseen (``apply`` of a custom Function) is bridged.
"""

import functools
import inspect
import itertools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from pullback.internal.torch import (
    COMPILER,
    FunctionMode,
    called_from,
    disable_torch_function,
    function_of,
    is_stepping,
    leave_function_mode,
)

__all__ = ["Cut", "Flow", "largest"]

_PATIENCE = 50_000  # functions: the program does not train, or an optimiser is used no more
_ALONE = 1_000  # functions more, in which no module was called: no hook will take it off the stack
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = str(Path(__file__).resolve().parents[2]) + os.sep
_REENTRANT = CheckpointFunction.forward.__code__
# Of a tensor they take shape, dtype or the gradient that lies beside it, and no value.
_VALUELESS = frozenset({"backward", "grad", "new_zeros", "new_ones", "new_empty", "new_full", ""})
_COMPUTED = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})  # attributes that compute
_LEAVING = frozenset(
    {"item", "tolist", "numpy", "__float__", "__int__", "__complex__", "__index__", "__array__",
     "__dlpack__", "data_ptr"}
)  # fmt: skip


@dataclass
class Cut:
    """Where leaves lose their gradient; the operation is an empty text where nobody knows."""

    operation: str = ""  # for example ".detach()"
    place: str = ""  # "file:line" in code that is not torch's, if it is known
    bit: int = 0
    leaves: int = 0
    nothing: bool = False  # whether a backward returned None there


class Flow(FunctionMode):
    """Follows leaves through the functions of torch while it is entered.

    Attributes:
        entered: by which thread.
        stepping: the optimiser that steps, and the code of its closure.
        reached: the leaves that a backward pass reached, and the cuts before it.
        wanted: the leaves of which is asked where their gradient becomes nothing.
        fault: why nothing is followed any more, or an empty text.
    """

    def __init__(self, meet: Callable[[Any], None]) -> None:
        super().__init__()
        self._meet = meet  # is told each module that is called
        self.entered = self.reached = self.wanted = 0
        self.stepping: tuple[Any, Any] | None = None
        self._backward = self._eager = self._called = False
        self.fault = ""
        self._patience = 0
        self._bits = (1 << number for number in itertools.count())
        self._leaves = WeakIdKeyDictionary()
        self._cuts: dict[tuple[str, str], Cut] = {}
        self._every_cut = self._left = 0  # their bits, and of those by which a value left torch
        self._used = self._inside = 0  # what modules have used, and how many are running
        self._stops: list[Cut] = []  # those that backward passes met
        self._note = object()  # the key of the set in a node: another watch has another
        self._beside = WeakIdKeyDictionary()  # of tensors, the cuts before them
        self._written = WeakIdKeyDictionary()  # of storages, those of what was written there unseen
        self._entered = ExitStack()

    def enter(self) -> None:
        """Follow what this thread runs from now on; what is compiled runs eagerly meanwhile."""
        self._patience = _PATIENCE
        if not self.entered and not self.fault:
            leave_function_mode(self)  # where it was left by its own handler
            self.entered = threading.get_ident()
            self.__enter__()
            self._inside = 0
            for hook in (
                register_module_forward_pre_hook(self._before_forward),
                register_module_forward_hook(self._after_forward, always_call=True),
            ):
                self._entered.enter_context(hook)

    def leave(self) -> None:
        """Look at nothing any more, whatever other modes were entered since."""
        if self.entered in (0, threading.get_ident()):
            self.entered = 0
            leave_function_mode(self)
            self._entered.close()
            self._eager = False

    def bit_of(self, leaf: Any) -> int:
        """The set that holds a leaf alone."""
        bit = self._leaves.get(leaf)
        if bit is None:
            bit = self._leaves[leaf] = next(self._bits)
        return bit

    def cause(self, leaf: int) -> Cut:
        """Where the gradient of a leaf stops that a loss reaches; of another, what cuts it."""
        # A value that no module has used has left torch for a log.
        left = self._left if self._used & leaf or not self._called else 0
        cuts, sets = self._cuts.values(), (self.reached, left)
        told = [cut for them in sets for cut in cuts if cut.bit & them]
        found = self._stops if self.reached & leaf else told
        return next((cut for cut in found if cut.leaves & leaf), Cut())

    def _before_forward(self, module: Any, given: Any) -> None:
        self._meet(module)
        self._called = True
        self._inside += 1
        self._run_eagerly()
        if self._patience < 0:
            self.leave()

    def _after_forward(self, module: Any, given: Any, output: Any) -> None:
        self._inside -= self._inside > 0  # those that ran when this began have not been counted

    def _run_eagerly(self) -> None:
        """Have what is compiled run eagerly, where the compiler is loaded (it takes seconds)."""
        # torch 2.7 makes tensors while the compiler is imported, before it has a stance.
        if not self._eager and hasattr(sys.modules.get(COMPILER), "set_stance"):
            self._eager = True
            stance = torch.compiler.set_stance("force_eager")
            self._entered.callback(stance.__exit__, None, None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.fault or not self.entered or self._is_by_optimizer():
            return func(*args, **kwargs)
        self._run_eagerly()
        self._patience -= 1
        if self._patience < -_ALONE:
            self.leave()  # torch puts the mode back on its stack, where it now costs little
        name = _name(func)
        # Before, since it may take the history of what it is given.
        before = self._guard(self._before, name, args, kwargs)
        self._backward = name == "backward"
        output = func(*args, **kwargs)
        if before:
            self._guard(self._after, name, args, kwargs, before, output)
        return output

    def _is_by_optimizer(self) -> bool:
        """Whether an optimiser computes by itself, which is no training; its closure is."""
        if self.stepping is None:
            return False
        optimizer, closure = self.stepping
        if not is_stepping(optimizer):  # it raised, and nobody hears of its end
            self.stepping = None
        return self.stepping is not None and not called_from(closure)

    def _guard(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """The program runs on whatever is met here, which is nothing to the modes around."""
        try:
            with disable_torch_function():
                return action(*arguments)
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"

    def _before(self, name: str, args: Any, kwargs: Any) -> int:
        """What lies before all that a function is given; nothing if it takes no value of it."""
        if name in ("backward", "grad"):
            self.reached |= self._union(args[:1])
        if name in _VALUELESS or name.endswith("_like"):
            return 0
        before = self._union((args, kwargs))
        self._used |= before if self._inside else 0
        return before

    def _after(self, name: str, args: Any, kwargs: Any, before: int, output: Any) -> None:
        if name in _LEAVING:
            self._left |= self._lose(name, before)
            return
        target = kwargs.get("out", args[0] if args else None)
        if isinstance(target, torch.Tensor) and (output is target or output is None):
            # Written, to memory that another tensor may share, which sees no history.
            given = (item for item in tensors_in((args, kwargs)) if item is not target)
            there = self._lose(name, self._union(given))
            if there:
                storage = target.untyped_storage()
                self._written[storage] = self._written.get(storage, 0) | there
            output = target
        for tensor in tensors_in((output,)):
            node = _node_of(tensor)
            if node is None:
                # A view that is made where no gradients are recorded says that it requires one,
                # and keeps it for itself: none of it reaches what it is a view of.
                own = self.bit_of(tensor) if tensor.requires_grad else 0
                cuts = self._lose(name, before & ~own)
                if cuts:
                    self._beside[tensor] = cuts
            elif self._note not in node.metadata:
                node.metadata[self._note] = self._behind(node, name) | before & self._every_cut

    def _lose(self, name: str, before: int) -> int:
        """The cuts of a set, with that at which a function loses the leaves in it, if there are."""
        cuts, leaves = before & self._every_cut, before & ~self._every_cut
        if not leaves:
            return cuts
        quiet, place = not torch.is_grad_enabled(), _place()
        called = name if name in _COMPUTED else f"{name}()"
        operation = called if name.startswith("_") or name == "tensor" else f".{called}"
        if quiet and called_from(_REENTRANT):
            operation = "a reentrant checkpoint of inputs that need no gradient"
        elif quiet:
            operation += " where no gradients are recorded"
        cut = self._cuts.get((operation, place))
        if cut is None:
            cut = self._cuts[operation, place] = Cut(operation, place, next(self._bits))
            self._every_cut |= cut.bit
        cut.leaves |= leaves
        return cuts | cut.bit

    def _union(self, values: Iterable[Any]) -> int:
        return functools.reduce(operator.or_, map(self._set_of, tensors_in(values)), 0)

    def _set_of(self, tensor: Any) -> int:
        """What lies before a tensor."""
        node, cuts = _node_of(tensor), self._every_cut and self._beside.get(tensor, 0)
        if node is not None:
            before = self._behind(node)
        else:
            before = self.bit_of(tensor) if tensor.requires_grad else 0
            if self._written:
                cuts |= self._written.get(tensor.untyped_storage(), 0)
        if cuts:
            # What is reached is not lost: in the forward of a custom Function no gradients are
            # recorded, and a parameter may be written with what is made of itself.
            lost = (cut for cut in self._cuts.values() if cut.bit & cuts and cut.leaves & ~before)
            before |= sum(cut.bit for cut in lost)
        return before

    def _behind(self, node: Any, name: str = "") -> int:
        """The set of a node that a function has made, noted in it and in all behind it."""
        waiting = [] if self._note in node.metadata else [node]
        while waiting:
            last = waiting[-1]
            leaf = getattr(last, "variable", None)
            before = 0 if leaf is None else self.bit_of(leaf)
            others = [other for other, _ in last.next_functions if other is not None]
            for other in others:
                noted = other.metadata.get(self._note)
                if noted is None:
                    waiting.append(other)
                else:
                    before |= noted
            if waiting[-1] is last:  # all that is behind it is known, and a graph does not change
                waiting.pop().metadata[self._note] = before
                if before & self.wanted and others:
                    last.register_hook(self._see_stop(last, name if last is node else ""))
        return node.metadata[self._note]

    def _see_stop(self, node: Any, name: str) -> Callable[[Any, Any], None]:
        """A hook that sees whether the gradient of a wanted leaf stops at a node."""
        function, place = function_of(node), _place() if name else ""
        if function is not None:
            name, place = f"{function.__name__}.backward", _definition(function)
        stop = Cut(name or node.name(), place)
        # A node that its own hook keeps alive would never be freed.
        behind = [0 if other is None else self._behind(other) for other, _ in node.next_functions]

        def see(outgoing: Any, incoming: Any) -> None:
            if self._backward and self.wanted and any(map(largest, incoming)):
                for before, gradient in zip(behind, outgoing, strict=False):
                    if before & self.wanted and not largest(gradient):
                        stop.leaves |= before & self.wanted
                        stop.nothing |= function is not None and gradient is None
                        self._stops.append(stop)
                        self.wanted &= ~before  # the first is the cause

        return see


def largest(gradient: Any) -> float:
    """The largest entry of a gradient, if there is one; NaN where one is."""
    if gradient is None or not gradient.numel():
        return 0.0
    numbers = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(numbers.detach().abs().max())


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors in nested lists, tuples and dictionaries."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _node_of(tensor: Any) -> Any:
    # A view that was made where no gradients are recorded, and written to since, is a leaf.
    with suppress(RuntimeError):
        return tensor.grad_fn
    return None


def _name(func: Any) -> str:
    """The name of a function, or of an attribute that it reads or sets, if that computes."""
    name = getattr(func, "__name__", "") or str(func)
    if name in ("__get__", "__set__"):
        attribute = getattr(func.__self__, "__name__", name)
        return attribute if attribute in _COMPUTED else ""
    return name.partition(".")[0]


def _place() -> str:
    """The innermost ``file:line`` that is not torch's or ours."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OWN, "<")):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _definition(function: Any) -> str:
    """Where the backward of a Function is written."""
    backward = inspect.unwrap(function.backward)
    try:
        lines, first = inspect.getsourcelines(backward)
    except (OSError, TypeError):
        return ""
    above = (n for n, line in enumerate(lines) if line.lstrip().startswith("def "))
    return f"{inspect.getsourcefile(backward)}:{first + next(above, 0)}"
