"""torchao: what is plain torch."""

import torch

from benchmarks.kernels_in_use._made import r
from benchmarks.wild._case import Published

PACKAGE = "torchao"
FOLDER = "torchao"
REASONS = [
    ("torchao.prototype.float8nocompile", "needs Triton kernels for float8 of a GPU"),
    ("torchao.prototype.moe_training", "needs MXFP8, NVFP4 or grouped kernels of a GPU"),
    ("torchao.prototype.blockwise_fp8_training", "needs Triton kernels for float8 of a GPU"),
    ("torchao.prototype.common.triton", "needs a GPU: it asks Triton for its capability"),
    ("torchao.prototype.spinquant", "needs the CUDA kernel of fast_hadamard_transform"),
    ("torchao.sparsity.training", "needs a GPU's sparse tensor cores"),
]
CASES = [
    Published("torchao.quantization.quant_primitives:_Round", lambda g: (r(g, 3, 8),),
              gradient="surrogate"),
    Published("torchao.quantization.quant_primitives:_RoundToFloat8",
              lambda g: (r(g, 3, 8), torch.float8_e4m3fn), gradient="surrogate"),
    Published("torchao.sparsity.supermask:GetSubnet",
              lambda g: (r(g, 4, 8).abs().detach().requires_grad_(), torch.zeros(4, 8),
                         torch.ones(4, 8), 0.5), gradient="surrogate"),
    Published("torchao.sparsity.supermask:ApplyMask",
              lambda g: (r(g, 4, 8), (r(g, 4, 8, grad=False) > 0).float())),
    Published("torchao.prototype.quantization.module_swap.quantizers:RoundStraightThrough",
              lambda g: (r(g, 3, 8),), gradient="surrogate"),
    Published("torchao.prototype.paretoq.models.utils_quant:LsqBinaryTernaryExtension",
              lambda g: (r(g, 3, 8), r(g, 3, 1).abs().detach().requires_grad_(), 3, False),
              gradient="surrogate"),
    Published("torchao.prototype.paretoq.models.utils_quant:StretchedElasticQuant",
              lambda g: (r(g, 3, 8), r(g, 3, 1).abs().detach().requires_grad_(), 2, False),
              gradient="surrogate"),
]  # fmt: skip
