"""DeepSpeed: its Triton kernels, in Triton's interpreter, and what is plain torch."""

import importlib
import types

import torch

from benchmarks.kernels_in_use._interpreter import install
from benchmarks.kernels_in_use._made import labels, r, softmax
from benchmarks.wild._case import Published

PACKAGE = "deepspeed"
FOLDER = "deepspeed"
install(active=True)
REASONS = [
    ("deepspeed.module_inject", "needs a group of processes"),
    ("deepspeed.moe", "needs a group of processes"),
    ("deepspeed.sequence", "needs a group of processes"),
    ("deepspeed.runtime.domino", "needs a group of processes"),
    ("deepspeed.runtime.sequence_parallel", "needs a group of processes"),
    ("deepspeed.runtime.activation_checkpointing", "needs CUDA streams"),
    ("deepspeed.ops.transformer", "compiles a CUDA extension when it is first used"),
    ("deepspeed.ops.deepspeed4science", "compiles a CUDA extension when it is first used"),
    ("deepspeed.ops.random_ltd", "compiles a CUDA extension when it is first used"),
    ("deepspeed.compile", "made while a model is compiled with its engine"),
    ("deepspeed.runtime.zero.parameter_offload", "made while its engine runs"),
]
PLACES = torch.tensor([2, 0, 1])
OPS = "deepspeed.ops.triton_ops"


# A Function of DeepSpeed is called by one function, which copies or refuses what the kernels do not
# take, and asks for a GPU besides. Those that ask for one are called here as theirs call them.
def weighted(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if not (rows.is_contiguous() and weights.is_contiguous()) or rows.ndim != 2:
        raise RuntimeError("contiguous rows and weights alone")
    return ops("autoep_fused_token_ops")._FusedRowWeighting.apply(rows, weights)


def rotary(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if given[0].shape[-1] % 2 or any(it.stride(-1) != 1 for it in given[:2]):
        raise RuntimeError("an even and dense last dimension alone")
    if any(it.shape[2:] != given[2].shape[1:] for it in given[:2]):
        raise RuntimeError("angles of other shapes")
    return ops("fused_rotary_pos_emb")._run_kernels(*given, 1)


def losses(logits: torch.Tensor, target: torch.Tensor, ignored: int) -> torch.Tensor:
    module = importlib.import_module("deepspeed.runtime.chunked_cross_entropy")
    return module._TritonCrossEntropy.apply(logits.contiguous(), target.contiguous(), ignored)


def ops(name: str) -> types.ModuleType:
    return importlib.import_module(f"{OPS}.{name}")


CASES = [
    Published("deepspeed.moe.ep_kernels:_PermuteRows",
              lambda g: (r(g, 3, 8), PLACES, torch.argsort(PLACES))),
    Published("deepspeed.moe.ep_kernels:_UnpermuteRows",
              lambda g: (r(g, 3, 8), PLACES, torch.argsort(PLACES))),
    Published(f"{OPS}.autoep_fused_token_ops:_FusedWeightedRestore",
              lambda g: (r(g, 4, 8), softmax(g, 2, 2), torch.tensor([2, 0, 3, 1]), 2, (1, 2, 8)),
              call=lambda *given: ops("autoep_fused_token_ops").fused_weighted_restore(*given)),
    Published(f"{OPS}.autoep_fused_token_ops:_FusedRowWeighting",
              lambda g: (r(g, 3, 8), r(g, 3, 1)), call=weighted),
    Published(f"{OPS}.fused_rms_norm:_FusedRMSNorm", lambda g: (r(g, 3, 8), r(g, 8), 1e-6),
              call=lambda *given: ops("fused_rms_norm")._run_kernels(*given)),
    Published(f"{OPS}.fused_rotary_pos_emb:_FusedRotaryPosEmb",
              lambda g: (r(g, 1, 2, 3, 8), r(g, 1, 1, 3, 8), r(g, 1, 3, 8, grad=False).cos(),
                         r(g, 1, 3, 8, grad=False).sin()), call=rotary),
    Published(f"{OPS}.swiglu_triton:_SwiGLUFn", lambda g: (r(g, 3, 8), r(g, 3, 8)),
              call=lambda *given: ops("swiglu_triton").swiglu(*given)),
    Published(f"{OPS}.swiglu_triton:_SwiGLUPackedFn", lambda g: (r(g, 3, 16),),
              call=lambda *given: ops("swiglu_triton").swiglu_packed(*given)),
    Published(f"{OPS}.group_gemm_triton:_GroupGemmFn",
              lambda g: (r(g, 4, 16), r(g, 2, 16, 16), torch.tensor([2, 4], dtype=torch.int32),
                         False),
              call=lambda *given: ops("group_gemm_triton").group_gemm_triton(*given)),
    Published("deepspeed.runtime.chunked_cross_entropy:_TritonCrossEntropy",
              lambda g: (r(g, 3, 8), labels(g, 8, 3), -100), call=losses),
    Published("deepspeed.runtime.chunked_cross_entropy:_ChunkedCrossEntropy",
              lambda g: (r(g, 3, 8), labels(g, 8, 3), -100, 2)),
    Published("deepspeed.runtime.zero.linear:LinearFunctionForZeroStage3",
              lambda g: (r(g, 3, 8), r(g, 4, 8), r(g, 4))),
]  # fmt: skip
