"""DeepSpeed: its Triton kernels, in Triton's interpreter, and what is plain torch."""

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
CASES = [
    Published("deepspeed.moe.ep_kernels:_PermuteRows",
              lambda g: (r(g, 3, 8), PLACES, torch.argsort(PLACES))),
    Published("deepspeed.moe.ep_kernels:_UnpermuteRows",
              lambda g: (r(g, 3, 8), PLACES, torch.argsort(PLACES))),
    Published("deepspeed.ops.triton_ops.autoep_fused_token_ops:_FusedWeightedRestore",
              lambda g: (r(g, 4, 8), softmax(g, 2, 2), torch.tensor([2, 0, 3, 1]), 2)),
    Published("deepspeed.ops.triton_ops.autoep_fused_token_ops:_FusedRowWeighting",
              lambda g: (r(g, 3, 8), r(g, 3))),
    Published("deepspeed.ops.triton_ops.fused_rms_norm:_FusedRMSNorm",
              lambda g: (r(g, 3, 8), r(g, 8), 1e-6)),
    Published("deepspeed.ops.triton_ops.fused_rotary_pos_emb:_FusedRotaryPosEmb",
              lambda g: (r(g, 1, 2, 3, 8), r(g, 1, 1, 3, 8), r(g, 1, 3, 8, grad=False).cos(),
                         r(g, 1, 3, 8, grad=False).sin())),
    Published("deepspeed.ops.triton_ops.swiglu_triton:_SwiGLUFn",
              lambda g: (r(g, 3, 8), r(g, 3, 8))),
    Published("deepspeed.ops.triton_ops.swiglu_triton:_SwiGLUPackedFn", lambda g: (r(g, 3, 16),)),
    Published("deepspeed.ops.triton_ops.group_gemm_triton:_GroupGemmFn",
              lambda g: (r(g, 4, 16), r(g, 2, 16, 16), torch.tensor([2, 4], dtype=torch.int32),
                         False)),
    Published("deepspeed.runtime.chunked_cross_entropy:_TritonCrossEntropy",
              lambda g: (r(g, 3, 8), labels(g, 8, 3), -100)),
    Published("deepspeed.runtime.chunked_cross_entropy:_ChunkedCrossEntropy",
              lambda g: (r(g, 3, 8), labels(g, 8, 3), -100, 2)),
    Published("deepspeed.runtime.zero.linear:LinearFunctionForZeroStage3",
              lambda g: (r(g, 3, 8), r(g, 4, 8), r(g, 4))),
]  # fmt: skip
