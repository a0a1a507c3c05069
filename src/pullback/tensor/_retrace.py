"""Run code written for no-grad mode so that autograd sees through it.

The forward and the backward of a Function run without gradients, and their authors write
``no_grad``, ``.detach()`` and ``.data`` freely: these change no value. To differentiate the two,
the same code runs again with each of them ignored. Whatever else gives a floating result without
history from a tensor that is differentiated (a trip to numpy, to Python numbers, a kernel without
a rule) is refused by name, since its derivative would silently be zero.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import (
    OpOverload,
    disable_torch_function,
    drops_writes,
    is_raised_by_tracing,
    pytree,
    set_grad_mode,
)
from pullback.tensor._levels import (
    IN_PLACE,
    nodes,
    same_view,
    tracking_level,
    tracking_levels,
    wrapper_level,
)
from pullback.tensor._operations import (
    ends_in_place,
    is_of_torch,
    is_unknown,
    name_of,
    tensors_in,
    with_argument,
    writes_into_a_view,
    written_by,
)

__all__ = [
    "LEAVING",
    "MEND",
    "Encoded",
    "Raised",
    "Retrace",
    "Unseen",
    "is_without_graph",
    "named",
    "retracing",
    "settle",
    "suspended",
]

MEND = (
    "Write the rules in torch operations on their arguments, or declare backward "
    "once_differentiable."
)

_tensor: Any = torch.Tensor
_aten = torch.ops.aten

_GRAD_MODE = {set_grad_mode}
_DETACHING = {
    _tensor.detach,
    torch.detach,
    torch.detach_copy,
    _tensor.data.__get__,
    _aten.detach,
    _aten.detach.default,
    _aten.alias,
    _aten.alias.default,
}
_REQUIRES_GRAD = _tensor.requires_grad.__get__
LEAVING = {
    _tensor.numpy: ".numpy()",
    _tensor.__array__: "numpy",
    _tensor.item: ".item()",
    _tensor.tolist: ".tolist()",
    _tensor.__float__: "float()",
    _tensor.__complex__: "complex()",
    _tensor.data_ptr: ".data_ptr()",
    _tensor.untyped_storage: ".untyped_storage()",
    _tensor.storage: ".storage()",
    _tensor.set_: ".set_()",
    _tensor.__dlpack__: "DLPack",
    _tensor.__reduce_ex__: "pickle",
    _tensor.data.__set__: "an assignment to .data",
}
# Functions of torch known to give a value that does not depend on the values of its arguments, or
# only in steps, so that its derivative is zero wherever there is one.
_CONSTANT = {
    "bernoulli", "bernoulli_", "bucketize", "empty_like", "exponential_", "fill_",
    "full_like", "geometric_", "heaviside", "histc", "log_normal_", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "nextafter", "normal_", "ones_like",
    "poisson", "rand_like", "randint_like", "randn_like", "random_", "round", "sign", "trunc",
    "uniform_", "zero_", "zeros_like",
}  # fmt: skip
# Of their second argument they read the shape, or the dtype and device.
_LIKE_ANOTHER = {"expand_as", "reshape_as", "to", "type_as", "view_as"}
# What tells of a tensor without reading its values.
_DESCRIBING = {
    getattr(_tensor, name).__get__
    for name in ("device", "dtype", "is_cuda", "itemsize", "layout", "nbytes", "ndim", "shape")
} | {_tensor.dim, _tensor.numel, _tensor.size, _tensor.is_floating_point, _tensor.is_complex}
_BITS = {"view", "view_dtype", "view_as_real"}

# What autograd says of the two ends of a graph that was not written down.
_WITHOUT_GRAPH = (
    "does not require grad and does not have a grad_fn",
    "One of the differentiated Tensors does not require grad",
)

_local = threading.local()


class Unseen(UnsupportedError):
    """A value reaches backward that forward computed where autograd does not see it."""


class Encoded(UnsupportedError):
    """A value is kept in a form that tells nothing of what it was computed from."""


class Raised(UnsupportedError):
    """What torch raised in a rule, by name: in one on a batch, maybe not on one item of it."""


for _kind in (Unseen, Encoded, Raised):
    _kind.__name__ = UnsupportedError.__name__  # what a user sees, and catches


class Retrace(TorchFunctionMode):
    """While active, gradients flow through all torch code, or the code is refused.

    Arguments:
        name: the name of the Function, for the message.
        purpose: what the code is run again for, for the message.
        mend: how the author can mend a refusal.
        sources: the tensors that are differentiated, at the innermost level that is.
        flags: what tensors are to answer when they are asked whether they require a gradient,
            by their ids; they must outlive the mode.
        through: Functions that the code applies are seen through, to their operations.
        strict: refuse tensors whose history was cut off where torch functions do not show it;
            not needed where the result is compared with the truth.
    """

    def __init__(
        self,
        name: str,
        purpose: str,
        mend: str,
        sources: Sequence[torch.Tensor | None] = (),
        flags: dict[int, bool] | None = None,
        *,
        through: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__()
        self.name = name
        self.purpose = purpose
        self.mend = mend
        self.level = max((tracking_level(s) for s in sources if s is not None), default=0)
        self.sources = [s for s in sources if s is not None and _differentiable(s)]
        self.levels: set[int] = set()  # that write history down
        self.flags = flags if flags is not None else {}
        self.through = through
        self.strict = strict
        self.forbidden: dict[int, torch.Tensor] = {}  # by id: computed where nothing was seen
        self.kept: Sequence[torch.Tensor] = ()  # so that the ids of flags stay theirs
        self.suspended = 0
        self.dtypes: set[torch.dtype] = set()  # of what the code made
        # By id, those with a history; most of them the graph keeps alive too.
        self._tracked: dict[int, torch.Tensor] = {}
        # By id, with what takes their place: leaves that were made of those with a history.
        self._leaves: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.constants: dict[int, torch.Tensor] = {}  # by id, kept so that the ids stay theirs

    def __enter__(self) -> "Retrace":
        for source in self.sources if self.level else ():
            none_of_it = source.narrow(0, 0, 0) if source.dim() else source
            self.levels |= tracking_levels(none_of_it.clone())  # a view would not tell
            if self.tracks(source):
                self._tracked[id(source)] = source
        _stack().append(self)
        return super().__enter__()

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        _stack().pop()
        super().__exit__(exc_type, exc_val, exc_tb)

    def __torch_function__(  # noqa: PLR0912 - one case of what autograd does not see a branch
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _REQUIRES_GRAD and id(args[0]) in self.flags:
            return self.flags[id(args[0])]
        if self.suspended or not self.level:
            return func(*args, **kwargs)
        if func in _GRAD_MODE:
            return None
        if func in _DETACHING:
            return args[0].view_as(args[0]) if self.tracks(args[0]) else args[0]
        if func is _tensor.detach_ and self.tracks(args[0]):
            return args[0]
        if func is _tensor.requires_grad_ and args[0].requires_grad:
            return args[0]
        if func in LEAVING and any(self.tracks(t) or id(t) in self.forbidden for t in args):
            raise self.refuse(f"it leaves torch through {LEAVING[func]}")
        if func is _tensor.__deepcopy__ and self.tracks(args[0]):
            return args[0].clone()
        if func is torch.autograd.grad:
            args, kwargs = with_argument(args, kwargs, 4, "create_graph", True)
        if func in _DESCRIBING:
            return func(*args, **kwargs)
        if drops_writes() and writes_into_a_view(func, args):
            raise self.refuse("it changes a view in place, which torch.func.linearize drops")
        leaves, spec = pytree.tree_flatten((args, kwargs))
        args, kwargs = pytree.tree_unflatten(self.confirm(leaves, name_of(func)), spec)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(func, OpOverload) and not is_of_torch(func):
                raise self.refuse(f"torch.func does not differentiate {name_of(func)}") from error
            raise
        self._confirm(func, args, kwargs, result)
        for leaf in tensors_in(result):
            self.dtypes.add(leaf.dtype)
            (self._tracked if self.tracks(leaf) else self.constants)[id(leaf)] = leaf
        return result

    def tracks(self, value: Any) -> bool:
        """Whether a value is a floating tensor that is differentiated."""
        if not isinstance(value, torch.Tensor):
            return False
        return _differentiable(value) and tracking_level(value) >= self.level > 0

    def confirm(self, values: Sequence[Any], where: str) -> list[Any]:
        """Refuse a tensor of this run without history that no torch function gave.

        A tensor of this run has a wrapper of its level. Those that are differentiated have a
        history; the constants among them were made by torch functions, and are known. What is
        the same view of the same memory as a tensor with a history, as ``Variable(x)`` is of
        ``x``, was detached unseen: the other takes its place.
        """
        found = list(values)
        for i, value in enumerate(values):
            if self.forbidden.get(id(value)) is value and value is not None:
                why = "backward uses a value that forward computed outside of torch"
                raise self.refuse(why, Unseen)
            if (
                isinstance(value, torch.Tensor)
                and self.level
                and _differentiable(value)
                and not self.tracks(value)
                and id(value) not in self.constants
                and wrapper_level(value) >= self.level
            ):
                attached = self._attached(value)
                if attached is not None:
                    found[i] = attached
                elif self.strict:
                    raise self.refuse(f"{where} meets a tensor whose history was cut off")
            elif isinstance(value, torch.Tensor) and self.tracks(value):
                found[i] = self._of_a_leaf(value)
                self._tracked[id(found[i])] = found[i]
        return found

    def _of_a_leaf(self, value: torch.Tensor) -> torch.Tensor:
        """For a leaf made unseen, as ``nn.Parameter(x)`` is, a view of ``x`` that stands for it."""
        if value.grad_fn is not None or id(value) in self._tracked:
            return value
        if id(value) not in self._leaves:
            attached = self._attached(value)
            view = value if attached is None else attached.view_as(attached)
            self._leaves[id(value)] = value, view
        return self._leaves[id(value)][1]

    def _attached(self, value: torch.Tensor) -> torch.Tensor | None:
        """The tensor with a history that is the same view of the same memory, if one is alive."""
        known = reversed(self._tracked.values())
        return next((tensor for tensor in known if same_view(value, tensor)), None)

    def _confirm(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Refuse a floating result without history of an argument that is differentiated."""
        name = name_of(func)
        if name.endswith("__get__") or (name in _CONSTANT and is_of_torch(func)):
            return
        like = name in _LIKE_ANOTHER and is_of_torch(func)
        given = pytree.tree_leaves(args[:1] if like else (args, kwargs))
        if not any(self.tracks(leaf) for leaf in given):
            return
        levels = set().union(*(tracking_levels(t) for t in given if isinstance(t, torch.Tensor)))
        levels &= self.levels
        written = name == "__setitem__" or ends_in_place(name)
        found = (result, args[0] if written else written_by(func, args, kwargs))
        for leaf in pytree.tree_leaves(found):
            if not isinstance(leaf, torch.Tensor):
                if isinstance(leaf, (float, complex)):
                    raise self.refuse(f"{name} makes a number of a tensor")
                continue
            if not _differentiable(leaf):
                if name in _BITS:
                    raise self.refuse("it reads the bits of a tensor as integers", Encoded)
                continue
            if not (self.tracks(leaf) and levels <= tracking_levels(leaf)):
                raise self.refuse(f"{name} gives a value without history")
            if any(map(is_unknown, nodes(leaf))):
                raise self.refuse(f"{name} has no derivative that autograd knows")

    def refuse(self, why: str, kind: type[UnsupportedError] = UnsupportedError) -> UnsupportedError:
        """Make the error that names what cannot be seen through."""
        return kind(f"{self.purpose} of {self.name} cannot be derived: {why}.", mend=self.mend)


def settle(results: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Take what a Function gives for inputs that are not differentiated as constants.

    A Function that code applies while it runs again uses its own rules, where no mode looks.
    """
    for mode in _stack():
        if mode.level and not any(mode.tracks(value) for value in inputs):
            mode.constants.update((id(t), t) for t in results if isinstance(t, torch.Tensor))


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Let a Function that is applied by the code that runs again use its own rules."""
    stack = list(_stack())
    for mode in stack:
        mode.suspended += 1
    try:
        yield
    finally:
        for mode in stack:
            mode.suspended -= 1


@contextlib.contextmanager
def named(name: str, purpose: str, mend: str) -> Iterator[None]:
    """Turn what torch raises where code runs again into a refusal by name."""
    try:
        yield
    except (PullbackError, Warning, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        if _is_control(error):
            raise
        first = str(error).strip().split("\n")[0][:200]
        raise Raised(
            f"{purpose} of {name} cannot be derived: its rules, run again where autograd sees "
            f"them, raise {type(error).__name__}: {first}",
            mend=mend,
        ) from error


def is_without_graph(error: Exception) -> bool:
    """Whether autograd was asked for a gradient of what it had written nothing down for."""
    return not isinstance(error, PullbackError) and any(s in str(error) for s in _WITHOUT_GRAPH)


def _is_control(error: Exception) -> bool:
    """Whether an error asks for another way to run, or stops the tracing of a graph."""
    text = str(error)
    signs = (*IN_PLACE, "randomness")
    return is_raised_by_tracing(error) or any(sign in text for sign in signs)


def _stack() -> list[Retrace]:
    if not hasattr(_local, "stack"):
        _local.stack = []
    return _local.stack


def retracing() -> Retrace | None:
    """The innermost mode in which code is being run again on this thread, if any."""
    stack = getattr(_local, "stack", None)
    return stack[-1] if stack else None


def _differentiable(tensor: torch.Tensor) -> bool:
    with disable_torch_function():  # asked of each tensor, and nothing to the modes around
        return tensor.is_floating_point() or tensor.is_complex()
