"""Watch rules while they run where autograd sees them, and find where a dependence is cut.

A gradient has a derivative of its own if every value on the way from the inputs and the cotangent
to it keeps its history. Rules lose it in few ways, and each shows itself to a mode of torch
functions: a function that detaches, one that leaves torch, one that gives a value without history
of a tensor that has one, a value that no function of torch was seen to make. Such a value is a
*cut*. A cut is no matter as long as the result does not depend on it (a mask ``x.detach() > 0`` has
no derivative anyway), so it is followed through whatever is computed of it, and only a result that
it reaches is refused.

Forward runs without gradients, so its author may detach as he likes: that changes nothing, and is
an identity when forward runs again. Where he switches gradients on, it is one unless backward asks
that graph. In backward it is a stop-gradient, which is refused rather than overridden; but
``u = x.detach().requires_grad_()`` begins a private derivative, of which the derivative is known.
"""

# Long: one mode of torch functions, whose cases share what is known of each tensor.

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    FunctionMode,
    are_functorch_transforms_active,
    forward_level,
    get_unwrapped,
    has_saved_result,
    is_functorch_wrapped_tensor,
    is_view,
    lacks_gradient,
    maybe_get_level,
    next_sequence_number,
    peek_interpreter_stack,
    sequence_number,
    set_grad_mode,
)
from pullback.tensor.values._functions import (
    BITS,
    CUTS,
    DECIDING,
    DESCRIBING,
    DETACHING,
    LEAVING,
    OVERWRITING,
    REQUIRES_GRAD,
    REQUIRING,
    RESHAPING,
    FunctionCall,
    ends_in_place,
    facts,
    is_of_torch,
    is_unknown,
    name_of,
    pieces,
    tensors_in,
    with_argument,
)
from pullback.tensor.values._levels import (
    alive,
    indexed,
    is_coarse,
    is_differentiable,
    is_viewing,
    memory_of,
    nodes,
    same_view,
    tangent_of,
    tracking_levels,
)
from pullback.tensor.values._structure import replaced
from pullback.tensor.watch._linear import Linearity
from pullback.tensor.watch._origins import Origins

__all__ = ["MEND", "Outside", "Watch", "refusal", "watching"]

_tensor: Any = torch.Tensor
_STOP = "it detaches a value, which stops the gradient there"
_STOPPED = "backward differentiates what forward has computed, where a gradient is stopped"
_DERIVING = {torch.autograd.grad, torch.autograd.backward, _tensor.backward}
_STALE = "it writes into a tensor whose memory another one shares unseen"
_UNKNOWN_VIEW = "it writes into a tensor of which autograd does not know all views"
_COMPUTED = "backward uses what forward may have computed"
_COARSE = "forward rounds to a floating dtype of 8 bits, and torch would round a derivative with it"
_UNSEEN = "it uses a value that no function of torch was seen to make"


class _Thread(threading.local):
    stack: "tuple[Watch, ...]" = ()


_thread = _Thread()


def watching() -> "Watch | None":
    """The innermost watch of this thread that is not paused."""
    stack = _thread.stack
    return stack[-1] if stack and not stack[-1].paused else None


_NUMBERS = frozenset({int, float, bool, type(None)})
_SWITCHES = {name_of(func) for func in (set_grad_mode, torch.autograd.grad)}


class Outside(BaseException):
    """A rule reads a tensor that it was not given: only running forward again tells whose it is."""


class Watch(FunctionMode):
    """Watches forward, backward or both; afterwards `whole` tells what a result has lost.

    Arguments:
        given: the tensors that the rules are given: inputs, saved tensors, cotangents.
        allocated: where rules run a second time, the storages that have come into being meanwhile.
            They tell a tensor that was made unseen from one that existed before. The latter is
            copied when it is first met, so that a second run writes to nothing that exists.
            Elsewhere such a tensor ends the run.
        outside: or is a constant.
        made: the storages that have come into being meanwhile, where values cannot show what such
            a constant hides.
        cuts_unknown: which of them are cut instead, unless they are written to, and leave it to
            the result whether it matters: each may be what forward has computed.
        detaches: whether backward cuts what it detaches. It does not where torch runs it without
            gradients anyway: in forward mode, and where it is declared once_differentiable.

    Raises:
        Outside: a rule that is not run again reads a tensor that it was not given.

    Attributes:
        in_forward: forward is running, so that a detached value is no cut.
        left: how a value has left torch; in forward, when that has ended, `left_in_forward`.
        outputs_left: what forward has computed of its output has left torch.
        outside: tensors that were read, existed before and are no argument.
        unknown: the memories of tensors that were cut since the rules were not given them.
        doubtful: backward used what forward computed of an output, or by another Function.
        paused: what runs now is not watched.
        answers: what tensors, by id, are to answer when they are asked whether they require a
            gradient, which below a transform they do not.
    """

    in_forward = paused = doubtful = outputs_left = False
    left: str | None = None
    left_in_forward: str | None = None
    _level = 0  # of the transforms around the rules
    _off = 0  # how often forward has switched gradients off
    _private = False  # forward makes a graph of its own
    _stopping = False  # in which it stops a gradient now
    _origins, _linearity = Origins(), Linearity()  # where nothing is added

    def __init__(
        self,
        given: Iterable[torch.Tensor | None],
        *,
        allocated: set[int] | None = None,
        outside: bool = False,
        made: set[int] | None = None,
        detaches: bool = True,
        cuts_unknown: Callable[[torch.Tensor], bool] | None = None,
    ) -> None:
        self._stopped: set[int] = set()  # what is computed of values whose gradient it stopped
        self.answers: dict[int, bool] = {}
        if allocated is not None:
            self._origins = Origins()
        self.outside: list[torch.Tensor] = []
        self.unknown: set[int] = set()
        self._allocated = allocated
        self._outside, self._made = outside, made
        self._detaches, self._cuts_unknown = detaches, cuts_unknown
        # By id, kept so that the ids stay theirs.
        self._known: dict[int, torch.Tensor] = {}
        self._instead: dict[int, torch.Tensor] = {}
        self._copies: dict[int, list[torch.Tensor]] = {}  # by the storages of what exists
        self._cuts: dict[int, str] = {}
        self._written: dict[int, str] = {}  # storages whose values were cut, or are old
        self._read: set[int] = set()  # by functions that may have saved them
        self._unwritten: list[torch.Tensor] = []  # whose new value is another tensor
        self._exposed: list[int] = []  # storages of which somebody has the memory
        self._viewed: set[int] = set()  # storages that views share
        self._apart: set[int] = set()  # those whose views autograd does not know
        self._met: set[int] = set()  # those of tensors that were made unseen
        self._given: set[int] = set()
        self._dependent: set[int] = set()  # on what was given
        self._filled: set[int] = set()  # storages into which such a value was written
        self._gone: list[int] = []  # those that depend on what was given, and have left torch
        self.dtypes: set[torch.dtype] = set()  # of what was made
        self._forward_mode = forward_level() >= 0
        self._in_reverse = torch.is_grad_enabled()
        # Nothing is at work but autograd, on rules that run once.
        alone = self._in_reverse and not self._forward_mode
        self._plainly = allocated is None and alone and not are_functorch_transforms_active()
        self._start = next_sequence_number()
        self.give(given)

    def give(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Take tensors as given to the rules."""
        for tensor in tensors:
            if tensor is not None:
                self._known[id(tensor)] = tensor
                if _levels(tensor) or (self._forward_mode and is_differentiable(tensor)):
                    self._given.add(id(tensor))
                    self._dependent.add(id(tensor))

    def give_cotangents(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take tensors as what the result has to be linear in."""
        self._linearity = Linearity(tensors)
        self.give(tensors)

    def is_linear(self, tensor: torch.Tensor) -> bool:
        """Whether a result is shown to be linear in the cotangents."""
        return self._linearity.of(tensor) in (True, "zero") and not self._linearity.is_told

    def doubt(self, outputs: Iterable[torch.Tensor]) -> None:
        """Note the outputs that forward has computed: the author's rule differentiates these."""
        self._origins.add_outputs(outputs)
        self.outputs_left = any(map(self._origins.doubts_of, self._gone))

    def write(self) -> None:
        """Write what was computed in the place of changes: somebody may have kept what was changed.

        Where nobody has read it before, autograd has saved none of its earlier values, unless as
        the result of a function: then it gets other memory, and what is saved stays as it is.
        """
        if not self._unwritten:  # as a rule: to switch gradients off takes longer than to ask
            return
        with torch.no_grad():
            for tensor in self._unwritten:
                value = self.current(tensor).reshape(tensor.shape)
                if tensor.requires_grad:
                    tensor.data = value.detach().clone()
                else:
                    tensor.copy_(value)

    def computed(self) -> list[torch.Tensor]:
        """The tensors that were computed of what was given."""
        made = (self._known[number] for number in self._known.keys() - self._given)
        return [tensor for tensor in made if self._depends([tensor])]

    def __enter__(self) -> "Watch":
        around = peek_interpreter_stack()
        self._level = 0 if around is None else around.level()
        _thread.stack = (*_thread.stack, self)
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        _thread.stack = _thread.stack[:-1]
        super().__exit__(exc_type, exc_val, exc_tb)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Watch forward: what is detached there is no cut."""
        self.in_forward = True
        try:
            with self:
                yield
        finally:
            self.in_forward = self._stopping = False
            self.left_in_forward, self.left = self.left, None

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Watch nothing for a while."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._plainly and not kwargs and _is_ordinary(func) and self._knows(args):
            result = func(*args)
            if _is_whole(result):
                self._known[id(result)] = result
                self._dependent.add(id(result))
            else:
                self._follow(
                    facts(func).name, FunctionCall(func, args, {}, tensors_in(*args), result)
                )
            return result
        return self._call(func, args, kwargs or {})

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that may be one of those that cut, leave torch or only describe."""
        if func == REQUIRES_GRAD and id(args[0]) in self.answers:
            return self.answers[id(args[0])]
        if self.paused or func in DESCRIBING:
            return func(*args, **kwargs)
        if func is set_grad_mode:
            return self._set_grad_mode(*args)
        if func in DETACHING:
            return self._detach(args[0])
        if func in REQUIRING:
            if not args[0].requires_grad:
                return func(self._seen(args[0]), *args[1:], **kwargs)
            if self._cuts.get(id(args[0])) is _STOP:
                del self._cuts[id(args[0])]
            self._stopped.discard(id(args[0]))
            return args[0]
        if func in _DERIVING:
            args, kwargs = self._derive(func, args, kwargs)
        name, changes, _, _ = facts(func)
        leaves = tensors_in(*args, *kwargs.values()) if kwargs else tensors_in(*args)
        target = args[0] if args and changes else None  # what it reads, it reads of a copy
        given = [self._seen(leaf, written=leaf is target) for leaf in leaves]
        if self._instead:
            swapped = {id(a): b for a, b in zip(leaves, given, strict=True) if a is not b}
            args, kwargs = _swap(args, swapped), _swap(kwargs, swapped)
        if func in LEAVING:
            return self._leave(func, args, kwargs, given)
        pairs = list(zip(leaves, given, strict=True)) if changes or "out" in kwargs else ()
        written = self._replace(func, args, kwargs, pairs) if pairs else None
        if written is not None:
            return written
        over = target is not None and name in OVERWRITING  # whose value nobody has saved for that
        self._read.update(id(tensor) for tensor in given[over:])
        result = pieces(func, args, kwargs) if func in CUTS else func(*args, **kwargs)
        self._follow(name, FunctionCall(func, args, kwargs, given, result))
        if target is not None and leaves and given[0] is not target is leaves[0]:
            self._write_copy(name, target)
        return iter(result) if func is _tensor.__iter__ else result

    def _derive(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a private derivative, which is to keep its history."""
        if func is not torch.autograd.grad:
            # What is detached is an identity here, so that it would reach the inputs, too; and run
            # once more, it would add to parameters what they have.
            raise UnsupportedError(
                "A rule that calls backward() adds to the gradients of leaves, which is done once, "
                "and has no derivative.",
                mend="Use torch.autograd.grad, which returns the gradients.",
            )
        if not self.in_forward and any(id(t) in self._stopped for t in tensors_in(*args[:1])):
            self.left = _STOPPED
        return with_argument(args, kwargs, 4, "create_graph", True)

    def _knows(self, args: Sequence[Any]) -> bool:
        """Whether all arguments are numbers, and tensors that are whole."""
        if self.paused or self._cuts or self._instead or self._written or self.left is not None:
            return False
        # Asked at each operation of a second derivative, where a generator costs as much again.
        for arg in args:  # noqa: SIM110
            if id(arg) not in self._known and type(arg) not in _NUMBERS:
                return False
        return True

    def _pure(self, name: str, args: Any) -> Any:
        """The function that gives what another one writes in place, if that may stand for it.

        Autograd may have saved the tensor that is written to. Where no view shares its memory, its
        new value is another tensor, which takes its place from here on.
        """
        copies = name == "copy_" and len(args) > 1 and isinstance(args[1], torch.Tensor)
        items = name == "__setitem__" and self._may_be_saved(args[0])
        kept = not copies and (name in OVERWRITING or name in RESHAPING)
        writes = items or (ends_in_place(name) and not kept)
        if not writes or not isinstance(args[0], torch.Tensor):
            return None
        if not self._is_alone(args[0]):
            return None
        if items:
            return _with_items
        return _copy if copies else getattr(_tensor, name.rstrip("_"), None)

    def _is_alone(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor may take the place of one: no view shares its memory."""
        _ = tensor.grad_fn  # else torch takes a view whose base has changed for a leaf
        if is_viewing(tensor) or memory_of(tensor) in self._viewed:
            return False
        return id(tensor) in self._known and is_differentiable(tensor)

    def _replace(
        self, func: Any, args: Any, kwargs: Any, leaves: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor | None:
        """Let what a function writes take the place of what it writes to, which is returned.

        Arguments:
            func: the function.
            args: its arguments.
            kwargs: those by name.
            leaves: the tensors that a rule has given, each with what stands for it now.
        """
        name, changes, _, _ = facts(func)
        pure = self._pure(name, args) if changes else None
        if pure is not None:
            target, given = args[0], [now for _, now in leaves]
            name = "index_put" if name == "__setitem__" else name.rstrip("_")
            first = self._unread([leaf for leaf, _ in leaves], given)
            result = pure(first, *args[1:], **kwargs)
        else:
            target, kwargs = kwargs.get("out"), {k: v for k, v in kwargs.items() if k != "out"}
            given = tensors_in(*args, *kwargs.values())
            itself = any(leaf is target for leaf, _ in leaves)  # nothing has taken its place yet
            if not self._is_replaced(target, given) or (itself and self._is_noted(target)):
                return None
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor) or result.shape != target.shape:
                return None  # torch gives another shape to the tensor itself
            self._read.update(map(id, given))
            self._unwritten += [target] if itself else []
        result = result.to(target.dtype)
        self._instead[id(target)] = result
        self._follow(name, FunctionCall(func, args, kwargs, given, result))
        leaf = next(leaf for leaf, now in leaves if now is target)
        self._supersede(leaf, target)
        return leaf

    def _is_replaced(self, out: Any, given: Sequence[torch.Tensor]) -> bool:
        """Whether a result takes the place of ``out``, where autograd writes no history."""
        known = isinstance(out, torch.Tensor) and self._is_alone(out)
        return known and any(map(self._tracks, given))

    def _is_noted(self, tensor: torch.Tensor) -> bool:
        """Whether autograd may have noted the value of a tensor, which has to stay there then."""
        return id(tensor) in self._read or bool(_levels(tensor))

    def _may_be_saved(self, tensor: torch.Tensor) -> bool:
        """Whether autograd may have saved a tensor: as what a function read, or as its result."""
        return id(tensor) in self._read or any(map(has_saved_result, nodes(tensor)))

    def _unread(
        self, leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """What is read in the place of a tensor that is changed; autograd may save it."""
        first, *others = given
        alone = first is leaves[0] and not any(first is other for other in others)
        within = _levels(first) and is_functorch_wrapped_tensor(first)  # its memory is a level's
        if not alone or id(first) in self._read or within:
            return first
        self._unwritten.append(first)
        return first.clone()

    def _write_copy(self, name: str, tensor: torch.Tensor) -> None:
        """Note that a function has written into what has taken the place of a tensor."""
        if name in RESHAPING:  # its shape is asked of the tensor itself
            self.left = "it changes the shape of a tensor that it has written into"
        self._supersede(tensor)

    def _supersede(self, *tensors: torch.Tensor) -> None:
        """Note that tensors' memory has their value no more: whoever shares it unseen is cut."""
        for tensor in tensors:
            memory = memory_of(tensor)
            self._written[memory] = _STALE
            for other in map(self.current, self._copies.get(memory, ())):
                if other is not self.current(tensor):
                    self._cuts[id(other)] = _STALE

    def _detach(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = self._seen(tensor)
        self._use(tensor)
        if not self._tracks(tensor):
            alone = tensor.detach()
            self._keep_alike(alone, tensor)
            self._keep_apart(alone)
            return alone
        strided = tensor.layout is torch.strided
        view = tensor.view_as(tensor) if strided else tensor.clone()
        # Below autograd, where torch detaches what ``Variable(x)`` is made of. A view made there
        # can answer for its base that it requires a gradient.
        whole = _levels(tensor) <= _levels(view) and (view.grad_fn or not view.requires_grad)
        if not whole or (self._forward_mode and _is_tangent_lost([tensor], [view])):
            return view
        self._keep_alike(view, tensor)
        self._keep_apart(view)
        if self._detaches and not self.in_forward:
            self._cuts.setdefault(id(view), _STOP)
        if self.in_forward and self._private:
            self._stopped.add(id(view))
        return view

    def _set_grad_mode(self, enabled: bool) -> None:
        """Leave gradients on in forward, but know whether its author has switched them on.

        Then he makes a graph for backward to ask, in which what he detaches, or computes where they
        are off again, is a constant. To leave a region sets what was before it, which is on here.
        """
        if not self.in_forward:
            if self._detaches:
                set_grad_mode(enabled)
        elif self._private:
            self._stopping = not enabled
        else:
            self._off += -1 if enabled else 1
            self._private = self._off < 0

    def _leave(self, func: Any, args: Any, kwargs: Any, given: Sequence[torch.Tensor]) -> Any:
        self._linearity.tell(given)
        tensors = [tensor for tensor in given if is_differentiable(tensor)]
        for tensor in tensors:
            self._use(tensor)
        if any(id(tensor) in self._cuts or self._tracks(tensor) for tensor in tensors):
            self.left = f"it leaves torch through {LEAVING[func]}"
        self._gone += [id(t) for t in tensors if self._depends([t])]
        exposed = [memory_of(t) for t in tensors if not self._tracks(t)]
        self._exposed += exposed
        self._viewed.update(exposed)
        if self.left is not None:  # what is known by its memory may be written unseen
            self._written.update(dict.fromkeys(self._exposed, self.left))
        plain = {id(t): t.detach() for t in tensors if t.requires_grad}
        return func(*_swap(args, plain), **_swap(kwargs, plain))

    def _seen(self, tensor: torch.Tensor, *, written: bool = False) -> torch.Tensor:
        """The tensor that a function is called with in the place of one that it was given."""
        tensor = self.current(tensor)
        number = id(tensor)
        if number in self._known:
            if written and self.unknown and memory_of(tensor) in self.unknown:
                raise Outside  # before it is written to where that has a history
            return tensor
        self._known[number] = tensor
        differentiable = is_differentiable(tensor)
        leaf = differentiable and tensor.grad_fn is None
        other = self._attached(tensor) if leaf else None
        if other is not None:
            self._instead[number] = other
            return other
        if self._is_made_of_known(tensor, private=leaf and tensor.requires_grad):
            return tensor
        if self._allocated is None:
            self._meet(tensor, written=written)
            return tensor
        if memory_of(tensor) in self._allocated:
            self._keep_met(tensor)
            if differentiable and not self._tracks(tensor):
                self._cuts[number] = _UNSEEN
            return tensor
        if differentiable and not written:
            self.outside.append(tensor)
            left = self._written.get(memory_of(tensor)) or self.left or self.left_in_forward
            if left is not None:  # it may be what an earlier run has kept, found by its values
                self._cuts[number] = left
        if tensor.requires_grad or not tensor.numel():  # a parameter, or the storage of a file
            return tensor
        copy = self._instead[number] = alive(tensor).clone()
        self._copies.setdefault(memory_of(tensor), []).append(copy)
        self._known[id(copy)] = copy
        if number in self._cuts:
            self._cuts[id(copy)] = self._cuts[number]
        return copy

    def _meet(self, tensor: torch.Tensor, *, written: bool) -> None:
        """Take a tensor that rules which run once were not given, and that they may write to."""
        differentiable, made = is_differentiable(tensor), self._made_meanwhile(tensor)
        cuts = None if made or written else self._cuts_unknown
        if cuts is not None and cuts(tensor):
            self.unknown.add(memory_of(tensor))
            self._cuts[id(tensor)] = _COMPUTED
        elif differentiable and not self._outside and not made:
            raise Outside
        # It may have been computed unseen.
        unknown = self._made is None or memory_of(tensor) in self._made
        if differentiable and self._linearity and unknown:
            self._linearity.deny(tensor)
        self._keep_met(tensor)

    def _made_meanwhile(self, tensor: torch.Tensor) -> bool:
        """Whether autograd has noted how it was made since the rules run: a script may have.

        No function of torch is called then; its history is what autograd says all the same.
        """
        node = tensor.grad_fn
        return node is not None and sequence_number(node) >= self._start

    def _is_made_of_known(self, tensor: torch.Tensor, *, private: bool) -> bool:
        """Whether a tensor wraps a known one, or is a private leaf made of it: it is alike then."""
        inside = self._wrapped(tensor)
        source = self._source(tensor) if inside is None and private else inside
        if source is None:
            return False
        self._keep_alike(tensor, source)
        current = self.current(source)  # what was written into one is another tensor, unknown there
        if (inside is None or current is not source) and self._tracks(current):
            self._cuts[id(tensor)] = _UNSEEN
        return True

    def _wrapped(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The known tensor that a transform within has wrapped in this one."""
        while self._is_wrapper(tensor):
            tensor = get_unwrapped(tensor)
            if id(tensor) in self._known:
                return tensor
        return None

    def _source(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The known tensor of whose memory a leaf that wants a gradient was made, as a parameter.

        What that one hides, the leaf hides too: it may be what forward has found in steps.
        """
        layers = [leaf]
        while is_functorch_wrapped_tensor(layers[-1]):
            layers.append(get_unwrapped(layers[-1]))
        for other in self._known.values():
            if other is not leaf and any(same_view(layer, other) for layer in layers):
                return other
        return None

    def _is_wrapper(self, tensor: torch.Tensor) -> bool:
        """Whether a transform within has wrapped a tensor, not one around the rules."""
        return is_functorch_wrapped_tensor(tensor) and maybe_get_level(tensor) > self._level

    def _depends(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one depends on what was given, or lies in memory filled with what does."""
        if not self._dependent.isdisjoint(map(id, tensors)):
            return True
        return bool(self._filled) and not self._filled.isdisjoint(map(memory_of, tensors))

    def _attached(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor was made of unseen: the same view of the same memory, with a history.

        So is ``Parameter(x)`` made of ``x``. A leaf that wants a gradient begins a private
        derivative, of what was not cut.
        """
        private = tensor.requires_grad
        for other in reversed(self._known.values()):
            if other is tensor or not same_view(tensor, other):
                continue
            if not self._tracks(other):
                if id(other) in self._cuts:  # what is made of it unseen is cut as well
                    self._cuts[id(tensor)] = self._cuts[id(other)]
                    return None
                continue
            if not (private and self._cuts.get(id(other)) is _STOP):
                return other
        return None

    def _tracks(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is differentiated, by autograd or in forward mode."""
        if _levels(tensor):
            return True
        return self._forward_mode and is_differentiable(tensor) and self._depends([tensor])

    def _keep(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> None:
        self._known[id(tensor)] = tensor
        self.dtypes.add(tensor.dtype)
        if self._depends(given):
            self._dependent.add(id(tensor))
        stopped = self._stopping or not self._stopped.isdisjoint(map(id, given))
        if stopped and is_differentiable(tensor):
            self._stopped.add(id(tensor))
        if self.in_forward:
            self._origins.add(tensor, given)

    def _keep_alike(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Take a tensor for what another one is, of which it is a copy, a view or a wrapper."""
        self._keep(tensor, [other])
        if self._origins and not self.in_forward:  # the doubts of the other are its own
            self._origins.add(tensor, [other])
        self._linearity.share(other, tensor)
        if (reason := self._reason([other])) is not None:
            self._cuts[id(tensor)] = reason

    def _keep_made(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> None:
        self._keep(tensor, given)
        memory = memory_of(tensor)
        is_given = any(other is tensor for other in given)  # by what changes it, and makes no view
        if is_viewing(tensor):
            self._viewed.add(memory)
        elif not is_given and any(memory_of(other) == memory for other in given):
            self._keep_apart(tensor)

    def _keep_met(self, tensor: torch.Tensor) -> None:
        """Note that whoever has made a tensor unseen may have its memory by another one, too."""
        self._viewed.add(memory_of(tensor))
        self._met.add(memory_of(tensor))

    def _keep_apart(self, tensor: torch.Tensor) -> None:
        """Note that a tensor shares memory with another one, and autograd does not know of it."""
        self._viewed.add(memory_of(tensor))
        self._apart.add(memory_of(tensor))

    def _is_apart(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor shares its memory, and autograd does not know of it."""
        memory = memory_of(tensor)
        others = (other for other in self._known.values() if other is not tensor)
        met = memory in self._met and any(memory_of(other) == memory for other in others)
        return met or memory in self._apart

    def _keep_inside(self, tensor: torch.Tensor) -> None:
        """Know what is within a wrapper, too: the transform that has made it unwraps it."""
        while self._is_wrapper(tensor):
            wrapper, tensor = tensor, get_unwrapped(tensor)
            if id(tensor) not in self._known:
                self._keep_alike(tensor, wrapper)

    def _use(self, tensor: torch.Tensor) -> None:
        """Note that backward uses a tensor that forward has computed."""
        if self.in_forward:
            return
        doubts, vouched = self._origins.use(tensor)
        self.doubtful = self.doubtful or bool(doubts)
        if not vouched:
            why = "forward applies a Function that its outputs do not depend on"
            self._cuts[id(tensor)] = why

    def _follow(self, name: str, done: FunctionCall) -> None:
        """Follow what was given to a function to what it has made or written."""
        _, _, constant, custom = facts(done.func)
        read = () if constant else done.read(name)
        for each in read if self._origins else ():
            self._use(each)
        if isinstance(done.result, (float, complex)) and any(map(self._tracks, read)):
            self.left = f"it makes a number of a tensor ({name})"
        levels = _all_levels(read) if self._in_reverse else _NONE
        made, written = tensors_in(done.result), done.written(name)
        reason = None if constant else self._reason(read) or self._rounds(read, made)
        if reason is None and self._forward_mode and any(map(self._tracks, read)):
            reason = self._lost_tangent(name, done)
        if name in BITS and not any(map(is_differentiable, read)):
            numbers = any(map(is_differentiable, made))
            reason = "it reads integers as the bits of numbers" if numbers else reason
        if custom and reason is None and levels and lacks_gradient(done.func):
            reason = f"no gradient is registered for the operator {name}"
        if self._linearity:
            self._linearity.follow(name, done, [*made, *written], written)
            self._linearity.tell(done.given if done.func in DECIDING else ())
        if written and self._depends(read):
            self._filled.update(map(memory_of, written))
        for tensor in (*made, *written):
            self._keep_made(tensor, read)
            is_written = any(tensor is each for each in written)
            if is_written and self.in_forward:
                self._origins.write(tensor, read)
            cut = reason or self._lost(name, tensor, levels)
            if is_written and cut is None and any(map(self._tracks, read)):
                cut = _UNKNOWN_VIEW if self._is_apart(tensor) else None
            if cut is not None and (is_differentiable(tensor) or _holds_bits(tensor, name, read)):
                self._cuts[id(tensor)] = cut
                if is_written:
                    self._written[memory_of(tensor)] = cut
            self._keep_inside(tensor)

    def _reason(self, given: Sequence[torch.Tensor]) -> str | None:
        """Why a value that is computed of these is cut."""
        for tensor in given:
            if id(tensor) in self._cuts:
                return self._cuts[id(tensor)]
            if self._written and is_differentiable(tensor):
                reason = self._written.get(memory_of(tensor))
                if reason is not None:
                    return reason
        return self.left

    def _rounds(self, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> str | None:
        """Why a value that forward has made of these has no derivative that is exact."""
        coarse = self.in_forward and any(is_coarse(each.dtype) for each in made)
        return _COARSE if coarse and any(map(self._tracks, given)) else None

    def _lost(self, name: str, tensor: torch.Tensor, levels: set[int]) -> str | None:
        """What a function has lost of the history of its arguments."""
        if not levels:
            return None
        if not is_differentiable(tensor):
            return "it reads the bits of a tensor as integers" if name in BITS else None
        if not levels <= _levels(tensor) and name != "_make_dual":  # its tangent has the history
            if not torch.is_grad_enabled():
                return "it computes without gradients, which stops the gradient there"
            return f"{name} gives a value without history"
        if any(map(is_unknown, nodes(tensor))):
            return f"{name} has no derivative that autograd knows"
        return None

    def _lost_tangent(self, name: str, done: FunctionCall) -> str | None:
        """The same in forward mode, where torch does not tell which levels a tensor has."""
        made = tensors_in(done.result)
        known = name.endswith("__get__") or is_of_torch(done.func)
        if not known or _is_tangent_lost(done.read(name), made) or name in ("tensor", "new_tensor"):
            return f"{name} gives a value without a tangent"
        if any(is_differentiable(each) and each.is_inference() for each in made):
            return "it computes in inference mode"
        if self._in_reverse and not torch.is_grad_enabled():
            return "it computes without gradients, which stops the gradient there"
        if name in BITS and not all(map(is_differentiable, made)):
            return "it reads the bits of a tensor as integers"
        return None

    def current(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value that a tensor has now, which may be another tensor."""
        while id(tensor) in self._instead:
            tensor = self._instead[id(tensor)]
        return tensor

    def whole(self, result: torch.Tensor) -> tuple[torch.Tensor, str | None]:
        """A result with its history, and what is missing in that."""
        if not is_differentiable(result) or (self._plainly and self._knows((result,))):
            return result, None
        result = self._seen(result)
        self._use(result)
        left, self.left = self.left, None  # what was made before is whole
        reason = self._reason([result])
        self.left = left
        return result, reason

    def apply(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Apply another Function, whose own rules count and are not watched."""
        leaves = tensors_in(*args, *kwargs.values())
        given = [self._seen(leaf) for leaf in leaves]
        swapped = {id(a): b for a, b in zip(leaves, given, strict=True)}
        with self.pause():
            result = call(*_swap(args, swapped), **_swap(kwargs, swapped))
        reason = self._reason(given)
        tracked = any(map(self._tracks, given))
        # Where what is outside is a constant, nobody differentiates in reverse.
        levels = _all_levels(given) if self._in_reverse and not self._outside else _NONE
        flowing = any(self._linearity.of(each) in (True, False) for each in given)
        for tensor in tensors_in(result):
            self._keep(tensor, given)
            if flowing:
                self._linearity.deny(tensor)
            if self.in_forward and tracked:
                self._origins.doubt(tensor)
            if not is_differentiable(tensor):
                continue
            if tracked and not (self._tracks(tensor) and levels <= _levels(tensor)):
                reason = reason or "it applies a Function that gives a value without history"
            if reason is not None:
                self._cuts[id(tensor)] = reason
        return result


@functools.cache
def _is_ordinary(func: Any) -> bool:
    """Whether a function of torch does nothing but to compute something of its arguments."""
    name, changes, constant, custom = facts(func)
    reads = func in DESCRIBING or name.endswith("__get__") or name in BITS
    special = func in DETACHING or func in LEAVING or func in REQUIRING or func in CUTS
    return not (changes or constant or custom or reads or special) and name not in _SWITCHES


def _is_whole(result: Any) -> bool:
    """Whether what an ordinary function has made has all the history of its arguments."""
    if type(result) is not torch.Tensor:
        return False
    node = result.grad_fn
    return node is not None and not is_view(result) and not is_unknown(node)


def _copy(tensor: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return source.to(tensor).expand(tensor.shape).clone()


def _with_items(tensor: torch.Tensor, index: Any, values: Any) -> torch.Tensor:
    result = indexed(tensor, index, values)
    if result is None:
        result = tensor.clone()
        result[index] = values
    return result


def _holds_bits(tensor: torch.Tensor, name: str, given: Sequence[torch.Tensor]) -> bool:
    """Whether integers were read off floating numbers, or computed of such integers."""
    if tensor.dtype is torch.bool:
        return False
    return name in BITS or (bool(given) and not any(map(is_differentiable, given)))


def _levels(tensor: torch.Tensor) -> set[int]:
    """The levels that differentiate a tensor in reverse."""
    if not are_functorch_transforms_active():
        return _OUTERMOST if tensor.requires_grad else _NONE
    return tracking_levels(tensor)


_OUTERMOST, _NONE = {0}, set[int]()


def _has_tangent(tensor: torch.Tensor) -> bool | None:
    """Whether a tensor has a tangent; ``None`` where that is not known, or it can have none."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_inference()
    if not plain or are_functorch_transforms_active() or not is_differentiable(tensor):
        return None
    return tangent_of(tensor) is not None


def _is_tangent_lost(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """Whether some of what was given has a tangent, and some of what was made of it has none."""
    return False in map(_has_tangent, made) and True in map(_has_tangent, given)


def _all_levels(tensors: Sequence[torch.Tensor]) -> set[int]:
    if not are_functorch_transforms_active():
        return _OUTERMOST if any(t.requires_grad for t in tensors) else _NONE
    return set().union(*map(tracking_levels, tensors))


def _swap(value: Any, swapped: dict[int, torch.Tensor]) -> Any:
    return replaced(value, lambda tensor: swapped.get(id(tensor), tensor)) if swapped else value


def refusal(purpose: str, name: str, why: str) -> UnsupportedError:
    """The error that names what cannot be seen through."""
    return UnsupportedError(f"{purpose} of {name} cannot be derived: {why}.", mend=MEND)


MEND = (
    "Write the rules in torch operations on their arguments, declare backward "
    "once_differentiable, or give the same computation in torch: complete(F, reference=...)."
)
