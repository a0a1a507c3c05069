"""Megatron core: what is plain torch, or runs in Triton's interpreter."""

import torch

from benchmarks.kernels_in_use._interpreter import install
from benchmarks.kernels_in_use._made import r
from benchmarks.wild._case import Inputs, Published

PACKAGE = "megatron-core"
FOLDER = "megatron"
install()
REASONS = [
    ("megatron.core.distributed", "made while its wrapper runs"),
    ("megatron.core.fusions.fused_softmax", "needs a CUDA extension"),
    ("megatron.core.fusions.fused_cross_entropy", "needs a group of processes"),
    ("megatron.core.fusions.fused_mla", "takes Triton's interpreter more than its minutes"),
    ("megatron.core.pipeline_parallel", "needs CUDA streams"),
    ("megatron.core.tensor_parallel.cross_entropy", "needs a group of processes"),
    ("megatron.core.tensor_parallel.layers:LinearWithGrad", "needs a group of processes"),
    ("megatron.core.tensor_parallel.mappings", "needs a group of processes"),
    ("megatron.core.tensor_parallel.random", "needs the generators of a GPU"),
    ("megatron.core.transformer.cuda_graphs", "needs CUDA graphs"),
    ("megatron.core.transformer.custom_layers.batch_invariant_kernels", "refuses a CPU"),
    ("megatron.core.transformer.moe.moe_utils:RouterGating", "needs Transformer Engine"),
    ("megatron.core.fusions.fused_indices_converter", "makes tensors on a GPU"),
    ("megatron.core.transformer.moe.fused_a2a", "needs DeepEP, and a group of processes"),
    ("megatron.core.transformer.moe.moe_utils:RandomSTE", "draws from the generators of a GPU"),
]  # fmt: skip


def at(name: str, inputs: Inputs, **more: str) -> Published:
    return Published(f"megatron.core.{name}", inputs, **more)


ZERO = torch.tensor(0.0)
CASES = [
    at("fusions.fused_bias_geglu:BiasGeGLUFunction", lambda g: (r(g, 3, 8), r(g, 8))),
    at("fusions.fused_bias_geglu:GeGLUFunction", lambda g: (r(g, 3, 8),)),
    at("fusions.fused_bias_geglu:WeightedQuickGeGLUFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 1), False, ZERO)),
    at("fusions.fused_bias_geglu:WeightedBiasQuickGeGLUFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 3, 1), False, ZERO)),
    at("fusions.fused_bias_gelu:GeLUFunction", lambda g: (r(g, 3, 8), r(g, 8))),
    at("fusions.fused_bias_swiglu:BiasSwiGLUFunction",
       lambda g: (r(g, 3, 8), r(g, 8), False, False)),
    at("fusions.fused_bias_swiglu:SwiGLUFunction", lambda g: (r(g, 3, 8), False, False)),
    at("fusions.fused_bias_swiglu:WeightedSwiGLUFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 1), False)),
    at("fusions.fused_weighted_squared_relu:WeightedSquaredReLUFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 1))),
    at("tensor_parallel.layers:LinearWithFrozenWeight",
       lambda g: (r(g, 3, 8), r(g, 4, 8, grad=False), r(g, 4), False, None)),
    at("transformer.experimental_attention_variant.dsa:DSAIndexerLossAutoScaler",
       lambda g: (r(g, 3, 8), r(g, 1)), gradient="surrogate"),
    at("transformer.moe.moe_utils:MoEAuxLossAutoScaler",
       lambda g: (r(g, 3, 8), r(g, 1)), gradient="surrogate"),
    at("transformer.multi_token_prediction:MTPLossAutoScaler",
       lambda g: (r(g, 3, 8), r(g, 1)), gradient="surrogate"),
    at("utils:MakeViewlessTensor", lambda g: (r(g, 3, 8), True)),
]  # fmt: skip
