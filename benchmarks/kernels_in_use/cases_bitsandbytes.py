"""bitsandbytes: its kernels for the CPU."""

import bitsandbytes.functional
import torch
from bitsandbytes.autograd._functions import MatmulLtState

from benchmarks.kernels_in_use._made import r
from benchmarks.wild._case import Published

PACKAGE = "bitsandbytes"
FOLDER = "bitsandbytes"
REASONS: list[tuple[str, str]] = []


def frozen(g: torch.Generator) -> MatmulLtState:
    """The state of a linear layer whose weight is stored in eight bits."""
    state = MatmulLtState()
    weight = r(g, 6, 16, grad=False).to(torch.float16)
    state.CB, state.SCB, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
    state.has_fp16_weights = False
    return state


def four_bits(g: torch.Generator) -> tuple[object, ...]:
    packed, state = bitsandbytes.functional.quantize_4bit(r(g, 8, 64, grad=False), quant_type="nf4")
    return r(g, 3, 64), packed.t(), None, r(g, 8), state


def eight_bits(g: torch.Generator) -> tuple[object, ...]:
    state = frozen(g)
    return r(g, 3, 16), state.CB, None, r(g, 6), state


WHERE = "bitsandbytes.autograd._functions"
CASES = [
    Published(f"{WHERE}:MatMul4Bit", four_bits),
    Published(f"{WHERE}:MatMul8bitFp", eight_bits),
    Published(f"{WHERE}:MatMul8bitLt", eight_bits, gradient="surrogate"),
]
