"""Through what a value passes unseen: 61 ways to compute ``t`` again with its history cut.

Each returns the value of ``t``; what it does to the graph is the matter. Its source becomes
``passage`` in the Function, in forward around what is kept, or in backward around what is used.
"""

import copy
import ctypes
import inspect
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["ORDINARY_PASSAGES", "PASSAGES", "Passage"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Passage:
    """One way through.

    Arguments:
        name: for the counts.
        source: the source of ``passage(t)``.
        ordinary: published code is full of it.
        stops: in backward it is a stop-gradient that its author wrote: what torch answers there is
            right, or a refusal, and no other number. What leaves torch is none, and no more is a
            private call of autograd: of these torch knows nothing.
    """

    name: str
    source: str
    ordinary: bool
    stops: bool


PASSAGES: list[Passage] = []
_STOPS = re.compile(r"detach|\.data\b|no_grad|set_grad_enabled|inference_mode|class Inner")
_LEAVES = re.compile(r"numpy|np\.|tolist|item\(|float\(|int64|autograd\.grad|func\.grad|ctypes")


def _passage(
    function: Callable[[Tensor], Tensor], *, ordinary: bool = False
) -> Callable[..., Tensor]:
    text = inspect.getsource(function)
    text = re.sub(r"def \w+\(t: Tensor(.*)\) -> Tensor:", r"def passage(t\1):", text)
    text = text[text.index("def ") :]
    decides = "requires_grad else" in text or "is_grad_enabled" in text
    stops = bool(_STOPS.search(text)) and not _LEAVES.search(text) and not decides
    PASSAGES.append(Passage(function.__name__, text, ordinary, stops))
    return function


def _everyday(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return _passage(function, ordinary=True)


@_everyday
def detach(t: Tensor) -> Tensor:
    return t.detach()


@_everyday
def torch_detach(t: Tensor) -> Tensor:
    return torch.detach(t)


@_everyday
def data(t: Tensor) -> Tensor:
    return t.data


@_everyday
def detach_and_clone(t: Tensor) -> Tensor:
    return t.detach().clone()


@_everyday
def variable(t: Tensor) -> Tensor:
    return torch.autograd.Variable(t)


@_everyday
def variable_of_data(t: Tensor) -> Tensor:
    return torch.autograd.Variable(t.data)


@_everyday
def no_grad(t: Tensor) -> Tensor:
    with torch.no_grad():
        return t * 1


@_everyday
def set_grad_enabled_(t: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return t * 1


@_everyday
def no_grad_as_decorator(t: Tensor) -> Tensor:
    @torch.no_grad()
    def helper(t):
        return t + 0

    return helper(t)


@_everyday
def copy__into_empty(t: Tensor) -> Tensor:
    out = torch.empty_like(t)
    return out.copy_(t)


@_everyday
def copy__into_zeros(t: Tensor) -> Tensor:
    out = torch.zeros_like(t)
    out.copy_(t)
    return out


@_everyday
def assigned_by_slices(t: Tensor) -> Tensor:
    out = torch.zeros_like(t)
    if not t.dim():
        return t
    out[:1] = t[:1]
    out[1:] = t[1:]
    return out


@_passage
def written_through_views(t: Tensor) -> Tensor:
    out = torch.zeros(t.shape, dtype=t.dtype)
    with torch.no_grad():
        for place, row in enumerate(out.view(-1).unbind()):
            row.copy_(t.reshape(-1)[place])
    return out


@_everyday
def assigned_by_index(t: Tensor) -> Tensor:
    out = torch.empty_like(t)
    out[...] = t
    return out


@_passage
def numpy(t: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(t.detach().double().numpy() * 1)).to(t.dtype)


@_passage
def numpy_with_force(t: Tensor) -> Tensor:
    return torch.as_tensor(t.double().numpy(force=True).copy()).to(t.dtype)


@_passage
def numpy_asarray(t: Tensor) -> Tensor:
    return torch.as_tensor(np.asarray(t.detach().double()).copy()).to(t.dtype)


@_passage
def numpy_array_of_a_list(t: Tensor) -> Tensor:
    return torch.tensor(np.array(t.tolist())).to(t.dtype)


@_passage
def tensor_of_a_list(t: Tensor) -> Tensor:
    return torch.tensor(t.tolist(), dtype=t.dtype)


@_passage
def tensor_of_a_tensor(t: Tensor) -> Tensor:
    return torch.tensor(t.detach())


@_passage
def new_tensor(t: Tensor) -> Tensor:
    return t.new_tensor(t.tolist())


@_passage
def items(t: Tensor) -> Tensor:
    return torch.tensor([e.item() for e in t.reshape(-1)], dtype=t.dtype).reshape(t.shape)


@_passage
def floats(t: Tensor) -> Tensor:
    return torch.tensor([float(e) for e in t.reshape(-1)], dtype=t.dtype).reshape(t.shape)


@_passage
def item_times_ones(t: Tensor) -> Tensor:
    return sum(
        torch.full_like(t, float(e)) * m
        for e, m in zip(
            t.reshape(-1), torch.eye(t.numel(), dtype=t.dtype).reshape(-1, *t.shape), strict=True
        )
    )


@_passage
def inference_mode(t: Tensor) -> Tensor:
    with torch.inference_mode():
        out = t * 1
    return out.clone()


@_passage
def out(t: Tensor) -> Tensor:
    out = torch.empty(t.shape, dtype=t.dtype)
    with torch.no_grad():
        torch.add(t, 0, out=out)
    return out


@_passage
def written_by_numpy(t: Tensor) -> Tensor:
    out = torch.empty(t.shape, dtype=torch.float64)
    np.multiply(t.detach().double().numpy(), 1, out=out.numpy())
    return out.to(t.dtype)


@_passage
def written_by_numpy_into_zeros(t: Tensor) -> Tensor:
    out = torch.zeros(t.shape, dtype=torch.float64)
    out.numpy()[...] = t.detach().double().numpy()
    return out.to(t.dtype)


@_passage
def dlpack(t: Tensor) -> Tensor:
    return torch.from_dlpack(t.detach()).clone()


@_passage
def numpy_over_dlpack(t: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(np.from_dlpack(t.detach().double()).copy())).to(t.dtype)


@_passage
def bits_as_integers(t: Tensor) -> Tensor:
    return t.detach().double().view(torch.int64).add(0).view(torch.float64).to(t.dtype)


@_passage
def bits_as_integers_with_history(t: Tensor) -> Tensor:
    return t.double().view(torch.int64).view(torch.float64).to(t.dtype)


@_passage
def a_kernel_that_writes_through_a_pointer(t: Tensor) -> Tensor:
    s = t.detach().contiguous()
    out = torch.empty_like(s)
    ctypes.memmove(out.data_ptr(), s.data_ptr(), s.numel() * s.element_size())
    return out


@_passage
def frombuffer(t: Tensor) -> Tensor:
    return (
        torch.frombuffer(
            bytearray(t.detach().double().contiguous().numpy().tobytes()), dtype=torch.float64
        )
        .reshape(t.shape)
        .to(t.dtype)
    )


@_passage
def same_storage(t: Tensor) -> Tensor:
    out = torch.empty(0, dtype=t.dtype)
    s = t.detach().contiguous()
    return out.set_(s.untyped_storage(), s.storage_offset(), s.shape, s.stride())


@_passage
def deepcopy(t: Tensor) -> Tensor:
    return copy.deepcopy(t.detach())


@_passage
def pickled(t: Tensor) -> Tensor:
    return pickle.loads(pickle.dumps(t.detach().clone()))


@_passage
def torch_save(t: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(t.detach().clone(), file)
    file.seek(0)
    return torch.load(file)


@_passage
def parameter(t: Tensor) -> Tensor:
    return torch.nn.Parameter(t.detach(), requires_grad=False) * 1


@_passage
def operator_of_aten(t: Tensor) -> Tensor:
    return torch.ops.aten.detach.default(t)


@_passage
def alias_of_aten(t: Tensor) -> Tensor:
    return torch.ops.aten.detach(torch.ops.aten.alias(t))


@_passage
def make_subclass(t: Tensor) -> Tensor:
    return torch.Tensor._make_subclass(torch.Tensor, t.detach())


@_passage
def without_torch_functions(t: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return t.detach() * 1


@_passage
def without_torch_functions_at_all(t: Tensor) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return t * 1


@_passage
def below_autograd(t: Tensor) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return t * 1


@_passage
def script(t: Tensor) -> Tensor:
    @torch.jit.script
    def scripted(t):
        return t.detach() * 1

    return scripted(t)


@_passage
def custom_op(t: Tensor) -> Tensor:
    if not hasattr(torch.ops.hidden, "copied"):

        @torch.library.custom_op("hidden::copied", mutates_args=())
        def _copied(t: torch.Tensor) -> torch.Tensor:
            return t.clone()

    return torch.ops.hidden.copied(t)


@_passage
def custom_op_that_writes(t: Tensor) -> Tensor:
    if not hasattr(torch.ops.hidden, "written"):

        @torch.library.custom_op("hidden::written", mutates_args=("out",))
        def _written(t: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(t)

    out = torch.empty_like(t)
    torch.ops.hidden.written(t, out)
    return out


@_passage
def library_implementation(t: Tensor) -> Tensor:
    if not hasattr(torch.ops.hidden_library, "copied"):
        library = torch.library.Library("hidden_library", "DEF")
        library.define("copied(Tensor t) -> Tensor")
        library.impl("copied", lambda t: t.clone(), "CPU")
        torch.hidden_library = library
    return torch.ops.hidden_library.copied(t)


@_passage
def another_Function_without_a_gradient(t: Tensor) -> Tensor:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 1

        @staticmethod
        def backward(ctx, g):
            return None

    return Inner.apply(t)


@_passage
def another_Function_split_without_a_gradient(t: Tensor) -> Tensor:
    class Inner(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(t):
            return t * 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return torch.zeros_like(g)

    return Inner.apply(t)


@_passage
def another_Function_not_differentiable(t: Tensor) -> Tensor:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            out = t * 1
            ctx.mark_non_differentiable(out)
            return out

        @staticmethod
        def backward(ctx, g):
            return g

    return Inner.apply(t)


@_passage
def asks_requires_grad(t: Tensor) -> Tensor:
    return t if t.requires_grad else t.detach()


@_passage
def asks_grad_mode(t: Tensor) -> Tensor:
    return t if torch.is_grad_enabled() else t.detach()


@_passage
def a_private_autograd(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = t.detach().requires_grad_()
        (out,) = torch.autograd.grad((u * u / 2).sum(), u)
    return out


@_passage
def a_private_func_grad(t: Tensor) -> Tensor:
    u = t.detach()
    return torch.func.grad(lambda s: (s * s / 2).sum())(u)


@_passage
def vjp_within(t: Tensor) -> Tensor:
    return torch.func.vjp(lambda s: s * s / 2, t)[1](torch.ones_like(t))[0]


@_passage
def grad_within(t: Tensor) -> Tensor:
    return torch.func.grad(lambda s: (s * s / 2).sum())(t)


@_passage
def vmap_within(t: Tensor) -> Tensor:
    return torch.func.vmap(lambda s: s * 1)(t.reshape(-1)).reshape(t.shape)


@_passage
def vmap_within_of_a_detached(t: Tensor) -> Tensor:
    return torch.func.vmap(lambda s: s.detach() * 1)(t.reshape(-1)).reshape(t.shape)


@_passage
def jacrev_within(t: Tensor) -> Tensor:
    flat = t.reshape(-1)
    return torch.func.jacrev(lambda s: s * s / 2)(flat).diagonal().reshape(t.shape)


@_passage
def functional_call_within(t: Tensor) -> Tensor:
    bias = torch.zeros_like(t)
    module = torch.nn.Identity()
    return torch.func.functional_call(module, {}, (t + bias,))


@_passage
def functional_vjp_within(t: Tensor) -> Tensor:
    return torch.autograd.functional.vjp(lambda s: s * s / 2, t, torch.ones_like(t))[1]


@_passage
def mean_of_a_stack(t: Tensor) -> Tensor:
    return torch.stack([t.detach(), t.detach()]).mean(0)


@_passage
def resized_buffer(t: Tensor, buffer=torch.zeros(0, dtype=torch.float64)) -> Tensor:  # noqa: B008
    buffer.resize_(t.shape).copy_(t.detach())
    return buffer.detach().clone().to(t.dtype)  # the buffer is written again, as torch would say


@_passage
def complex_and_back(t: Tensor) -> Tensor:
    return torch.complex(t.detach().double(), t.detach().double()).real.to(t.dtype)


@_passage
def a_lookup(t: Tensor) -> Tensor:
    s, i = t.detach().reshape(-1).sort()
    return torch.empty_like(s).scatter_(0, i, s).reshape(t.shape)


@_passage
def cached_by_value(t: Tensor, cache={}) -> Tensor:  # noqa: B006
    key = tuple(t.reshape(-1).tolist())
    return cache.setdefault(key, t.detach().clone())


@_passage
def foreach(t: Tensor) -> Tensor:
    return torch._foreach_mul([t.detach()], 1.0)[0]


@_passage
def stored_in_a_list_of_the_module(t: Tensor, keep=[]) -> Tensor:  # noqa: B006
    keep.append(t.detach())
    return keep[-1] * 1


ORDINARY_PASSAGES = frozenset(passage.name for passage in PASSAGES if passage.ordinary)
