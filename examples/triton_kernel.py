"""Check and complete a Triton kernel: an operator with a tail fault, found and mended.

Run it with ``python examples/triton_kernel.py``. Without a GPU the kernels run in Triton's
interpreter, which needs ``pip install triton`` on Linux.
"""

import os
import warnings

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import pullback  # noqa: E402

BLOCK = 64


@triton.jit
def gate_kernel(a, b, y, size, BLOCK: tl.constexpr):  # noqa: N803 - as Triton writes constants
    """One block of y = silu(a) b."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    left, right = tl.load(a + at, mask=inside), tl.load(b + at, mask=inside)
    tl.store(y + at, left / (1 + tl.exp(-left)) * right, mask=inside)


def launch(a: torch.Tensor, b: torch.Tensor, blocks: int) -> torch.Tensor:
    """Run the kernel over so many blocks of contiguous inputs."""
    a, b = a.contiguous(), b.contiguous()
    y = torch.zeros_like(a)
    if blocks:
        gate_kernel[(blocks,)](a, b, y, a.numel(), BLOCK=BLOCK)
    return y


@torch.library.custom_op("examples::gate", mutates_args=())
def gate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) b; the last block is left out where the size is no multiple of BLOCK."""
    return launch(a, b, a.numel() // BLOCK)


@torch.library.custom_op("examples::right_gate", mutates_args=())
def right_gate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) b, the last block too."""
    return launch(a, b, triton.cdiv(a.numel(), BLOCK))


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, cotangent):
    a, b = ctx.saved_tensors
    sigmoid = a.sigmoid()
    return cotangent * b * sigmoid * (1 + a * (1 - sigmoid)), cotangent * a * sigmoid


for operator in (gate, right_gate):
    operator.register_fake(lambda a, b: torch.empty_like(a))
    operator.register_autograd(backward, setup_context=keep_inputs)


def main() -> None:
    """Check both, complete the right one."""
    a, b = (torch.randn(2 * BLOCK, dtype=torch.float64, device=DEVICE) for _ in range(2))
    clauses = ["derivative", "linear", "sizes"]
    found = pullback.check(gate, a, b, clauses=clauses)
    print(found)
    assert found["derivative"].verdict == "holds"  # at a multiple of the block all is right
    assert found["sizes"].verdict == "broken"
    print(right := pullback.check(right_gate, a, b, clauses=clauses))
    assert right.ok
    completed = pullback.complete(right_gate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that vmap runs a kernel item by item
        hessian = torch.func.hessian(lambda a: completed(a, b[:3]).sum())(a[:3])
    print("The second derivative, which nobody wrote:", hessian.diag().tolist())


if __name__ == "__main__":
    main()
