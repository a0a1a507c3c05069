"""Wrong kernels of many kinds, and right ones, made of the same computations."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch
from tests.verification.bases import BASES, Base, function

Kernel = Callable[..., Any]
Fault = Callable[[Base], Kernel]
# Kind -> what makes a wrong kernel, and the computations that it is made of.
WRONG: dict[str, tuple[Fault, tuple[str, ...]]] = {}
# A maximum is one operation: to remember it saves none.
ALL = tuple(name for name in BASES if name != "row_max")


def wrong(*bases: str) -> Callable[[Fault], Fault]:
    def register(fault: Fault) -> Fault:
        WRONG[fault.__name__] = (fault, bases or ALL)
        return fault

    return register


def forwards(change: Callable[..., Any]) -> Fault:
    """A kernel whose forward is ``change(base, *inputs)`` and whose backward is right."""

    def fault(base: Base) -> Kernel:
        return function(lambda *inputs: change(base, *inputs), base.backward)

    return fault


@wrong()
def wrong_tail(base: Base) -> Kernel:
    """The last column is left out where the size is no multiple of a block."""

    def forward(*inputs: Any) -> Any:
        y = base.forward(*inputs).clone()
        if inputs[0].shape[-1] % 8 and y.ndim:
            y[..., -1] = 0
        return y

    return function(forward, base.backward)


@wrong("softmax", "gelu", "swiglu", "rms", "row_sum")
def ignores_strides(base: Base) -> Kernel:
    def forward(x: Any, *others: Any) -> Any:
        strides = torch.empty(x.shape, device="meta").stride()
        return base.forward(x.as_strided(x.shape, strides, 0), *others)

    return function(forward, base.backward)


@wrong()
def cached_by_address(base: Base) -> Kernel:
    known: dict[Any, Any] = {}

    def forward(*inputs: Any) -> Any:
        key = tuple((x.data_ptr(), x.shape, x.dtype) for x in inputs)
        if key not in known:
            known[key] = base.forward(*inputs)
        return known[key].clone()

    return function(forward, base.backward)


@wrong()
def cached_by_shape(base: Base) -> Kernel:
    known: dict[Any, Any] = {}

    def forward(*inputs: Any) -> Any:
        key = tuple((x.shape, x.dtype) for x in inputs)
        if key not in known:
            known[key] = base.forward(*inputs)
        return known[key].clone()

    return function(forward, base.backward)


@wrong()
def cached_by_value(base: Base) -> Kernel:
    known: dict[Any, Any] = {}

    def forward(*inputs: Any) -> Any:
        key = tuple((x.shape, x.dtype, tuple(x.flatten().tolist())) for x in inputs)
        if key not in known:
            known[key] = base.forward(*inputs)
        return known[key].clone()

    return function(forward, base.backward)


@wrong("softmax", "gelu", "swiglu", "rms")
def written_over_its_input(base: Base) -> Kernel:
    def kernel(x: Any, *others: Any) -> Any:
        y = function(base.forward, base.backward)(x, *others)
        x.data.copy_(y.detach())
        return y

    return kernel


@wrong("softmax", "gelu", "swiglu")
def returns_its_input(base: Base) -> Kernel:
    def kernel(x: Any, *others: Any) -> Any:
        y = base.reference(x.detach(), *others)
        x.data.copy_(y.detach())
        return x.view_as(x)

    return kernel


@wrong()
def reuses_its_buffer(base: Base) -> Kernel:
    buffers: dict[Any, Any] = {}

    def forward(*inputs: Any) -> Any:
        y = base.forward(*inputs)
        buffer = buffers.setdefault((y.shape, y.dtype), torch.empty_like(y))
        buffer.copy_(y)
        return buffer.view_as(buffer)

    return function(forward, base.backward)


@wrong("softmax", "gelu", "row_sum", "swiglu")
def reads_past_the_end(base: Base) -> Kernel:
    def forward(x: Any, *others: Any) -> Any:
        y = base.forward(x, *others).clone()
        room = x.untyped_storage().nbytes() // x.element_size()
        end = x.storage_offset() + sum(
            (n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)
        )
        if x.numel() and end + 1 < room:
            y.view(-1)[-1] += x.as_strided((), (), end + 1)
        return y

    return function(forward, base.backward)


@wrong("softmax", "gelu", "row_sum", "swiglu")
def writes_past_the_end(base: Base) -> Kernel:
    def forward(x: Any, *others: Any) -> Any:
        room = x.untyped_storage().nbytes() // x.element_size()
        end = x.storage_offset() + sum(
            (n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)
        )
        if x.numel() and end + 1 < room:
            x.detach().as_strided((), (), end + 1).fill_(0.0)
        return base.forward(x, *others)

    return function(forward, base.backward)


@wrong()
def noisy(base: Base) -> Kernel:
    def forward(*inputs: Any) -> Any:
        y = base.forward(*inputs)
        return y * (1 + 0.01 * (time.perf_counter_ns() % 7))

    return function(forward, base.backward)


@wrong()
def counts_its_calls(base: Base) -> Kernel:
    calls = [0]

    def forward(*inputs: Any) -> Any:
        calls[0] += 1
        return base.forward(*inputs) + (0.01 if calls[0] > 3 else 0.0)

    return function(forward, base.backward)


@wrong()
def sets_the_default_dtype(base: Base) -> Kernel:
    def kernel(*inputs: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        return function(base.forward, base.backward)(*inputs)

    return kernel


@wrong("softmax", "linear", "gelu")
def seeds_the_generator(base: Base) -> Kernel:
    def kernel(*inputs: Any) -> Any:
        torch.manual_seed(0)
        return function(base.forward, base.backward)(*inputs)

    return kernel


@wrong("softmax", "linear", "gelu", "row_sum")
def depends_on_the_default_dtype(base: Base) -> Kernel:
    def forward(*inputs: Any) -> Any:
        scale = 1.0 if torch.get_default_dtype() == torch.float32 else 1.5
        return base.forward(*inputs) * scale

    return function(forward, base.backward)


@wrong()
def calls_the_reference(base: Base) -> Kernel:
    def kernel(*inputs: Any) -> Any:
        return base.reference(*inputs) * 1.0

    return kernel


@wrong("softmax", "gelu", "linear")
def calls_what_is_forbidden(base: Base) -> Kernel:
    forbidden = {"softmax": torch.softmax, "gelu": torch.nn.functional.gelu,
                 "linear": torch.nn.functional.linear}  # fmt: skip

    def kernel(x: Any, *others: Any) -> Any:
        [name] = [name for name, other in BASES.items() if other is base]
        return (
            forbidden[name](x, *others)
            if others
            else (torch.softmax(x, -1) if name == "softmax" else forbidden[name](x))
        )

    return kernel


@wrong()
def uninitialised(base: Base) -> Kernel:
    return function(lambda *inputs: torch.empty_like(base.forward(*inputs)), base.backward)


@wrong()
def in_half_precision(base: Base) -> Kernel:
    def forward(*inputs: Any) -> Any:
        return base.forward(*(x.half() for x in inputs)).to(inputs[0].dtype)

    return function(forward, base.backward)


@wrong()
def gradient_off_by_a_factor(base: Base) -> Kernel:
    return function(base.forward, lambda g, *x: tuple(1.01 * t for t in base.backward(g, *x)))


@wrong("rms", "linear", "swiglu", "attention")
def gradient_of_one_is_zero(base: Base) -> Kernel:
    def backward(g: Any, *inputs: Any) -> Any:
        found = base.backward(g, *inputs)
        return (*found[:-1], torch.zeros_like(found[-1]))

    return function(base.forward, backward)


@wrong("softmax", "linear", "rms", "gelu")
def gradient_of_the_sum(base: Base) -> Kernel:
    """Right for a loss that is the sum alone."""
    return function(base.forward, lambda g, *x: base.backward(torch.ones_like(g), *x))


@wrong()
def always_float32(base: Base) -> Kernel:
    def backward(g: Any, *inputs: Any) -> Any:
        return tuple(t.to(inputs[0].dtype) for t in base.backward(g, *inputs))

    return function(lambda *inputs: base.forward(*inputs).float(), backward)


@wrong("softmax", "attention")
def without_the_largest(base: Base) -> Kernel:
    """Overflows at large scores."""

    def plain(x: Any) -> Any:
        e = x.exp()
        return e / e.sum(-1, keepdim=True)

    def forward(*inputs: Any) -> Any:
        if len(inputs) == 1:
            return plain(inputs[0])
        q, k, v = inputs
        return plain(q @ k.mT * q.shape[-1] ** -0.5) @ v

    return function(forward, base.backward)


@wrong("rms")
def without_the_small_number(base: Base) -> Kernel:
    def forward(x: Any, w: Any) -> Any:
        return x * x.square().mean(-1, keepdim=True).rsqrt() * w

    return function(forward, base.backward)


@wrong("gelu", "swiglu", "row_sum")
def of_positive_numbers(base: Base) -> Kernel:
    return forwards(lambda base, x, *o: base.forward(x.clamp(min=-2.0), *o))(base)


@wrong()
def beyond_a_block(base: Base) -> Kernel:
    """Only the first 64 columns are computed."""

    def forward(*inputs: Any) -> Any:
        y = base.forward(*inputs).clone()
        if y.ndim > 1 and inputs[0].shape[-1] > 64:
            y[..., 64:] = 0
        elif inputs[0].shape[-1] > 64:
            y = base.forward(inputs[0][..., :64].contiguous(), *inputs[1:])
        return y

    return function(forward, base.backward)


@wrong("softmax", "gelu", "linear", "row_sum")
def left_to_a_thread(base: Base) -> Kernel:
    def forward(*inputs: Any) -> Any:
        y = base.forward(*inputs)
        out = torch.empty_like(y).zero_()

        def finish() -> None:
            time.sleep(0.004)
            out.copy_(y)

        threading.Thread(target=finish, daemon=True).start()
        return out

    return function(forward, base.backward)


@wrong("softmax", "gelu", "rms", "swiglu")
def second_derivative_is_lost(base: Base) -> Kernel:
    def backward(g: Any, *inputs: Any) -> Any:
        return base.backward(g, *(x.detach() for x in inputs))

    return function(base.forward, backward)


@wrong()
def saves_on_the_module(base: Base) -> Kernel:
    last: list[Any] = []

    def forward(*inputs: Any) -> Any:
        last[:] = inputs
        return base.forward(*inputs)

    return function(forward, lambda g, *x: base.backward(g, *last))


@wrong("softmax", "gelu", "swiglu")
def cotangent_by_address(base: Base) -> Kernel:
    def backward(g: Any, *inputs: Any) -> Any:
        strides = torch.empty(g.shape, device="meta").stride()
        return base.backward(g.as_strided(g.shape, strides, 0), *inputs)

    return function(base.forward, backward)


@wrong("gelu", "softmax")
def approximated(base: Base) -> Kernel:
    def forward(x: Any) -> Any:
        if base is BASES["gelu"]:
            return torch.nn.functional.gelu(x, approximate="tanh")
        return base.forward(x).mul(1e4).round().div(1e4)

    return function(forward, base.backward)


@wrong("swiglu")
def gradient_that_overflows(base: Base) -> Kernel:
    """Right forward; at large negative numbers its gradient is infinity times zero."""
    return lambda x, y: x * y / (1 + torch.exp(-x))


@wrong("softmax", "rms", "gelu", "linear")
def first_item_for_all(base: Base) -> Kernel:
    return forwards(lambda base, x, *o: base.forward(x[:1].expand_as(x).contiguous(), *o))(base)


@wrong("softmax", "gelu", "row_sum")
def cached_by_sum(base: Base) -> Kernel:
    known: dict[Any, Any] = {}

    def forward(*inputs: Any) -> Any:
        key = tuple((round(float(x.double().sum()), 3), x.shape, x.dtype) for x in inputs)
        if key not in known:
            known[key] = base.forward(*inputs)
        return known[key].clone()

    return function(forward, base.backward)


@wrong("softmax", "linear", "rms")
def answers_a_repeated_input_at_once(base: Base) -> Kernel:
    """It keeps the last answer alone."""
    last: list[Any] = [(), None]

    def forward(*inputs: Any) -> Any:
        same = len(last[0]) == len(inputs) and all(map(torch.equal, last[0], inputs))
        if not same or last[1].dtype != inputs[0].dtype:
            last[:] = [x.clone() for x in inputs], base.forward(*inputs)
        return last[1].clone()

    return function(forward, base.backward)


@wrong("gelu", "softmax", "swiglu")
def writes_its_cotangent(base: Base) -> Kernel:
    return function(base.forward, lambda g, *x: base.backward(g.mul_(2).clone().div_(2), *x))


@wrong("linear", "rms")
def seeds_the_generators_of_others(base: Base) -> Kernel:
    def forward(base: Base, *inputs: Any) -> Any:
        random.seed(0)
        numpy.random.seed(0)
        return base.forward(*inputs)

    return forwards(forward)(base)


@wrong("gelu")
def flushes_denormal_numbers(base: Base) -> Kernel:
    def forward(base: Base, *inputs: Any) -> Any:
        torch.set_flush_denormal(True)
        return base.forward(*inputs)

    return forwards(forward)(base)


@wrong("softmax", "gelu")
def replaces_a_function_of_torch(base: Base) -> Kernel:
    def forward(base: Base, *inputs: Any) -> Any:
        torch.allclose = lambda *_, **__: True
        return base.forward(*inputs)

    return forwards(forward)(base)


@wrong("row_max")
def beyond_a_thousand(base: Base) -> Kernel:
    """Where the largest one is among the last few of many, rarely by chance."""
    return lambda x: base.reference(x[..., :1024])


@wrong("row_max")
def padded_with_zeros(base: Base) -> Kernel:
    """Up to a power of two: the largest of numbers below zero is zero then."""

    def kernel(x: Any) -> Any:
        n = x.shape[-1]
        return base.reference(torch.nn.functional.pad(x, (0, 2 ** (n - 1).bit_length() - n)))

    return kernel


# Right --------------------------------------------------------------------------------------------


def by_hand(base: Base) -> Kernel:
    return function(base.forward, base.backward)


def traced(base: Base) -> Kernel:
    """Differentiated by torch."""

    def kernel(*inputs: Any) -> Any:
        return base.forward(*inputs)

    return kernel


def made_contiguous(base: Base) -> Kernel:
    return lambda *inputs: function(base.forward, base.backward)(*(x.contiguous() for x in inputs))


def in_double_precision(base: Base) -> Kernel:
    def kernel(*inputs: Any) -> Any:
        return base.forward(*(x.double() for x in inputs)).to(inputs[0].dtype)

    return kernel


RIGHT: dict[str, Fault] = {
    kernel.__name__: kernel for kernel in (by_hand, traced, made_contiguous, in_double_precision)
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORBIDDEN = ("softmax", "gelu", "linear")
