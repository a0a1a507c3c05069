"""flash-linear-attention: its Triton kernels, in Triton's interpreter.

Batch, time, heads and features are 1, 5, 2 and 16 where nothing else is asked for.
"""

import torch

from benchmarks.kernels_in_use._interpreter import install
from benchmarks.kernels_in_use._made import labels, log_decay, r, softmax, u, unit
from benchmarks.wild._case import Inputs, Published

PACKAGE = "fla-core"
FOLDER = "fla"
install()

REASONS = [
    ("fla.modules.activations.triton_ascend", "needs an Ascend NPU"),
    ("fla.modules.fused_cross_entropy.triton_ascend", "needs an Ascend NPU"),
    ("fla.modules.grpo.triton_ascend", "needs an Ascend NPU"),
    ("fla.ops.attnres.backends.triton_ascend", "needs an Ascend NPU"),
    ("fla.ops.kda.backends.triton_ascend", "needs an Ascend NPU"),
    ("fla.ops.precond_gated_delta_rule.backends.triton_ascend", "needs an Ascend NPU"),
    ("fla.ops.simple_gla.backends.triton_ascend", "needs an Ascend NPU"),
    ("fla.ops.attnres.backends.gluon", "needs Gluon, which Triton's interpreter does not run"),
    ("fla.modules.causal_conv1d.backends.cuda", "needs the CUDA kernels of causal-conv1d"),
    ("fla.modules.causal_conv1d.cp", "needs a group of processes"),
    ("fla.ops.attnres", "refuses a CPU"),
    ("fla.ops.comba.fused_recurrent", "has no backward: it raises"),
    ("fla.ops.gated_delta_rule.fused_recurrent", "has no backward: it raises"),
    ("fla.ops.gated_oja_rule.fused_recurrent", "has no backward: it raises"),
    ("fla.ops.precond_gated_delta_rule.fused_recurrent", "has no backward: it raises"),
    ("fla.ops.cyfa.fused_recurrent", "has no backward: it raises"),
    ("fla.ops.moba", "needs the CUDA kernels of flash-attn"),
    ("fla.ops.delta_rule.parallel", "imports a name that its package no longer has"),
    ("fla.ops.generalized_delta_rule.iplr.chunk", "has no backward: it raises"),
    ("fla.ops.generalized_delta_rule.dplr", "Triton's interpreter does not run its kernels"),
    ("fla.ops.abc", "Triton's interpreter does not run its kernels"),
    ("fla.ops.hgrn.chunk", "Triton's interpreter does not run its kernels"),
    ("fla.modules.token_shift_cp", "needs a group of processes"),
]
SHAPE = (1, 5, 2, 16)


def qkv(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    return r(g, *SHAPE), r(g, *SHAPE), r(g, *SHAPE)


def beta(g: torch.Generator) -> torch.Tensor:
    return u(g, 0.1, 0.9, *SHAPE[:3])


def per_head(g: torch.Generator) -> torch.Tensor:
    return log_decay(g, *SHAPE[:3])


def per_feature(g: torch.Generator) -> torch.Tensor:
    return log_decay(g, *SHAPE)


def delta(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    return r(g, *SHAPE), unit(g, *SHAPE), r(g, *SHAPE)


def state(g: torch.Generator) -> torch.Tensor:
    return r(g, 1, 2, 16, 16)


def low_rank(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The two factors of what is added to the identity in a transition."""
    direction = unit(g, *SHAPE).detach()
    return (-direction).requires_grad_(), (direction * 0.5).requires_grad_()


def cyclic(g: torch.Generator) -> tuple[object, ...]:
    """Queries, keys, values; decay, clock and write strength of each; a table of readouts."""
    from fla.ops.cyfa.utils import build_readout_table

    rates = per_head(g), u(g, 0.1, 0.5, *SHAPE[:3]), beta(g)
    table = build_readout_table(r(g, 2, 15, 15, grad=False)).detach().requires_grad_()
    weights = u(g, 0.5, 1.5, 16), u(g, 0.5, 1.5, 16)
    return (*qkv(g), *rates, table, *weights, 1e-5, 1e-5, 0.25, None, None, None, False, None, None,
            0)  # fmt: skip


def at(name: str, inputs: Inputs, **more: str) -> Published:
    return Published(f"fla.{name}", inputs, **more)


MODULES = [
    at("layers.utils:IndexFirstAxis", lambda g: (r(g, 4, 2, 3), torch.tensor([2, 0]))),
    at("layers.utils:IndexPutFirstAxis", lambda g: (r(g, 2, 3), torch.tensor([2, 0]), 4)),
    at("modules.activations.ops:SigmoidFunction", lambda g: (r(g, 3, 8),)),
    at("modules.activations.ops:ELUPlusOneFunction", lambda g: (r(g, 3, 8),)),
    at("modules.activations.ops:LogSigmoidFunction", lambda g: (r(g, 3, 8), 1.5)),
    at("modules.activations.ops:SwishFunction", lambda g: (r(g, 3, 8),)),
    at("modules.activations.ops:GeLUFunction", lambda g: (r(g, 3, 8), r(g, 8))),
    at("modules.activations.ops:FastGeLUFunction", lambda g: (r(g, 3, 8),)),
    at("modules.activations.ops:SquaredReLUFunction", lambda g: (r(g, 3, 8),)),
    at("modules.activations.ops:SwiGLUFunction", lambda g: (r(g, 3, 8), r(g, 3, 8))),
    at("modules.activations.ops:SwiGLULinearFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 4, 8), r(g, 4))),
    at("modules.activations.ops:SigmoidGLUFunction", lambda g: (r(g, 3, 8), r(g, 3, 8))),
    at("modules.activations.ops:SigmoidGLULinearFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 4, 8), r(g, 4))),
    at("modules.activations.ops:PowGLUFunction", lambda g: (r(g, 3, 8), r(g, 3, 8), 2.0)),
    at("modules.activations.ops:PowGLULinearFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 4, 8), r(g, 4), 2.0)),
    at("modules.causal_conv1d.ops:CausalConv1dFunction",
       lambda g: (r(g, 1, 6, 8), r(g, 8, 3), r(g, 8))),
    at("modules.fused_cross_entropy.ops:FusedCrossEntropyFunction",
       lambda g: (r(g, 3, 8), labels(g, 8, 3))),
    at("modules.fused_kl_div.ops:FusedKLDivLossFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8, grad=False), r(g, 10, 8), r(g, 10, 8, grad=False),
                  "batchmean", True, True)),
    at("modules.fused_linear_cross_entropy.ops:FusedLinearCrossEntropyFunction",
       lambda g: (r(g, 3, 8), labels(g, 10, 3), r(g, 10, 8), r(g, 10))),
    at("modules.grpo.ops:GrpoLoss",
       lambda g: (r(g, 2, 4, 8), -u(g, 1, 3, 2, 3, grad=False), labels(g, 8, 2, 5),
                  r(g, 2, grad=False), 0.04, None, False, False),
       gradient="surrogate"),  # of the policy: its value is no function of the logits
    at("modules.l2warp:L2Wrap", lambda g: (r(g, 1)[0].detach().requires_grad_(), r(g, 1, 3, 8)),
       gradient="surrogate"),
    at("modules.norm.fused_norm_gate:LayerNormGatedFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 8), r(g, 8), "swish")),
    at("modules.norm.fused_norm_gate:LayerNormGatedLinearFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 8), r(g, 8), r(g, 4, 8), r(g, 4))),
    at("modules.norm.l2norm:L2NormFunction", lambda g: (r(g, 3, 8),)),
    at("modules.norm.layernorm:LayerNormFunction", lambda g: (r(g, 3, 8), r(g, 8), r(g, 8))),
    at("modules.norm.layernorm:LayerNormLinearFunction",
       lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), r(g, 4, 8), r(g, 4))),
    at("modules.norm.layernorm_gated:LayerNormFn",
       lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), r(g, 3, 8))),
    at("modules.norm.layernorm_quant:LayerNormLinearQuantFunction",
       lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), r(g, 4, 8), r(g, 4)), gradient="surrogate"),
    at("modules.rotary.ops:RotaryEmbeddingFunction",
       lambda g: (r(g, *SHAPE), r(g, 5, 8, grad=False).cos(), r(g, 5, 8, grad=False).sin())),
    at("modules.token_shift:TokenShift", lambda g: (r(g, 1, 5, 8),)),
]  # fmt: skip

OPS = [
    at("ops.attn.parallel:ParallelAttentionFunction",
       lambda g: (*qkv(g), None, None, 0.25, None, None)),
    at("ops.based.fused_chunk:FusedChunkBasedFunction", lambda g: (*qkv(g), 0.25)),
    at("ops.based.parallel:ParallelBasedFunction", lambda g: (*qkv(g), 0.25)),
    at("ops.comba.chunk:ChunkCombaFunction",
       lambda g: (*delta(g), unit(g, *SHAPE), per_head(g), beta(g), 0.25, None, False)),
    at("ops.common.fused_chunk:FusedChunkFunction",
       lambda g: (*qkv(g), per_head(g), None, 0.25, None, False, None)),
    at("ops.common.fused_recurrent:FusedRecurrentFunction",
       lambda g: (*qkv(g), None, None, per_feature(g), None, 0.25)),
    at("ops.common.gate:BetaSigmoidFunction", lambda g: (r(g, 1, 5, 2),)),
    at("ops.delta_rule.chunk:ChunkDeltaRuleFunction",
       lambda g: (*delta(g), beta(g), 0.25, None, False)),
    at("ops.delta_rule.fused_recurrent:FusedRecurrentFunction",
       lambda g: (*delta(g), beta(g), 0.25, None, False)),
    at("ops.deltaformer.parallel:ParallelDeltaformerFunction",
       lambda g: (*qkv(g), beta(g))),
    at("ops.gated_delta_product.chunk:ChunkGatedDeltaProductFunction",
       lambda g: (r(g, *SHAPE), unit(g, 1, 10, 2, 16), r(g, 1, 10, 2, 16), per_head(g),
                  u(g, 0.1, 0.9, 1, 10, 2), 0.25, 2, None, False)),
    at("ops.gated_delta_rule.chunk:ChunkGatedDeltaRuleFunction",
       lambda g: (*delta(g), per_head(g), beta(g), 0.25, None, False)),
    at("ops.gated_delta_rule.gate:GDNGateFunction", lambda g: (r(g, 1, 5, 2), r(g, 2), r(g, 2))),
    at("ops.gated_oja_rule.chunk:ChunkOJAFunction",
       lambda g: (*qkv(g), per_feature(g), beta(g), 0.25, None, False)),
    at("ops.gdn2.chunk:ChunkGDN2Function",
       lambda g: (*delta(g), per_feature(g), u(g, 0.1, 0.9, *SHAPE), u(g, 0.1, 0.9, *SHAPE), None,
                  None, 0.25, None, False, False, False, None, None, False, None, 64, False, False,
                  False)),
    at("ops.generalized_delta_rule.iplr.fused_recurrent:FusedRecurrentIPLRDeltaRuleFunction",
       lambda g: (*qkv(g), *low_rank(g), 0.25)),
    at("ops.gla.chunk:ChunkGLAFunction",
       lambda g: (*qkv(g), per_feature(g), 0.25, None, False, False, None, None)),
    at("ops.gsa.chunk:ChunkGSAFunction",
       lambda g: (*qkv(g), softmax(g, *SHAPE), per_feature(g), 0.25, None, None, False, 2, None,
                  None)),
    at("ops.gsa.fused_recurrent:FusedRecurrentGSAFunction",
       lambda g: (*qkv(g), softmax(g, *SHAPE), per_feature(g), 0.25)),
    at("ops.hgrn.fused_recurrent:FusedRecurrentHGRNFunction",
       lambda g: (r(g, 1, 5, 16), log_decay(g, 1, 5, 16))),
    at("ops.kda.chunk:ChunkKDAFunction",
       lambda g: (*delta(g), per_feature(g), beta(g), None, None, 0.25, None)),
    at("ops.kda.gate:KDAGateFunction", lambda g: (r(g, *SHAPE), r(g, 2), r(g, 32))),
    at("ops.linear_attn.utils:StatefulNormalizeFunction",
       lambda g: (r(g, *SHAPE), u(g, 0.5, 2, *SHAPE), u(g, 0.5, 2, *SHAPE), 0.25, None, False,
                  None)),
    at("ops.mesa_net.chunk:ChunkMesaNetFunction",
       lambda g: (r(g, *SHAPE), unit(g, *SHAPE), r(g, *SHAPE), per_head(g), beta(g),
                  u(g, 0.5, 1, 2, 16), None, None, 30, None, None, False, False)),
    at("ops.parallax.parallel:ParallaxFunction",
       lambda g: (r(g, *SHAPE), *qkv(g), 0.25, -1, None)),
    at("ops.path_attn.parallel:ParallelPATHAttentionFunction",
       lambda g: (*qkv(g), unit(g, *SHAPE), beta(g), per_head(g), 0.25, None)),
    at("ops.rebased.parallel:ParallelBasedFunction", lambda g: (*qkv(g), 0.25)),
    at("ops.rwkv4.fused_recurrent:FusedRecurrentRWKV4Function",
       lambda g: (u(g, -2, -0.5, 8), r(g, 8), r(g, 1, 5, 8), r(g, 1, 5, 8),
                  torch.zeros(1, 3, 1, 8))),
    at("ops.rwkv6.chunk:ChunkRWKV6Function",
       lambda g: (*qkv(g), per_feature(g), r(g, 2, 16), 0.25, None, False, None, None)),
    at("ops.rwkv6.fused_recurrent:FusedRecurrentRWKV6Function",
       lambda g: (*qkv(g), per_feature(g), r(g, 2, 16), 0.25)),
    at("ops.rwkv7.channel_mixing:Rwkv7ChannelMixing",
       lambda g: (r(g, 1, 5, 16), torch.zeros(1, 16), r(g, 16), r(g, 16, 32), r(g, 32, 16))),
    at("ops.rwkv7.fused_addcmul:Rwkv7FusedAddcmul",
       lambda g: (r(g, 1, 5, 16), r(g, 1, 5, 16), *(r(g, 1, 1, 16) for _ in range(6)))),
    at("ops.rwkv7.fused_k_update:KUpdateFunction",
       lambda g: (r(g, 1, 5, 32), r(g, 1, 5, 32), r(g, 32))),
    at("ops.rwkv7.gate_output_correction:GateOutputCorrection",
       lambda g: (r(g, 1, 5, 32), r(g, *SHAPE), r(g, *SHAPE), r(g, 2, 16), r(g, *SHAPE),
                  r(g, 1, 5, 32))),
    at("ops.simple_gla.chunk:ChunkSimpleGLAFunction",
       lambda g: (*qkv(g), per_head(g), None, 0.25, None, False, False, None, None)),
    at("ops.simple_gla.parallel:ParallelSimpleGLAFunction",
       lambda g: (*qkv(g), per_head(g), 0.25, False, None, None)),
    at("ops.stickbreaking_attn.parallel:ParallelStickBreakingAttentionFunction",
       lambda g: (*qkv(g), 0.25, False, None)),
    at("ops.utils.pack:PackSequenceFunction",
       lambda g: (r(g, 2, 4, 8), torch.tensor([0, 3, 5]), "left")),
    at("ops.utils.pack:UnpackSequenceFunction",
       lambda g: (r(g, 5, 8), torch.tensor([0, 3, 5]), "left", None)),
    at("ops.utils.pooling:MeanPoolingFunction", lambda g: (r(g, *SHAPE), 2)),
    at("ops.utils.sinkhorn.ops:SinkhornFunction", lambda g: (r(g, 3, 4, 4), 3)),
    at("ops.wall_attn.parallel:WallParallelAttentionFunction",
       lambda g: (*qkv(g), per_feature(g), None, 0.25, None, None)),
]  # fmt: skip

LATER = [
    at("ops.cyfa.chunk:ChunkCyFAFunction", cyclic),
    at("ops.gsa.gate:FusedAdditiveGateFunction",
       lambda g: (r(g, *SHAPE), None, None, torch.float32, torch.float32)),
    at("ops.log_linear_attn.chunk:ChunkLogLinearAttentionFunction",
       lambda g: (*(r(g, 1, 5, 1, 64) for _ in range(3)), log_decay(g, 1, 5, 1),
                  u(g, 0.5, 1, 1, 5, 1, 4), None, False, None, 0.25)),
    at("ops.momentum_delta_rule.chunk:ChunkMomentumDeltaRuleFunction",
       lambda g: (*delta(g), unit(g, *SHAPE), per_head(g), per_head(g), beta(g), beta(g), 0.25,
                  None, None, False, None, False, False, 16)),
    at("ops.momentum_delta_rule.fused_recurrent:FusedRecurrentMomentumDeltaRuleFunction",
       lambda g: (*delta(g), unit(g, *SHAPE), per_head(g), per_head(g), beta(g), beta(g), 0.25,
                  None, None, False, None, False, False)),
    at("ops.nsa.compression:ParallelNSACompressionFunction",
       lambda g: (r(g, 1, 4, 16, 16), r(g, 1, 2, 1, 16), r(g, 1, 2, 1, 16), 4, 2, 0.25, None)),
    at("ops.nsa.parallel:ParallelNSAFunction",
       lambda g: (r(g, 1, 4, 16, 16), r(g, 1, 4, 1, 16), r(g, 1, 4, 1, 16),
                  torch.tensor([0, 0, 1, 1]).view(1, 4, 1, 1), 1, 2, 0.25, None)),
    at("ops.precond_gated_delta_rule.chunk:ChunkPrecondGatedDeltaRuleFunction",
       lambda g: (*delta(g), per_head(g), per_head(g), beta(g), beta(g), 0.25, None, None, False)),
    at("ops.precond_kda.chunk:ChunkPrecondKDAFunction",
       lambda g: (*delta(g), per_feature(g), per_head(g), beta(g), beta(g), 0.25, None, None,
                  False, True)),
    at("ops.ttt.chunk:ChunkTTTLinearFunction",
       lambda g: (*(r(g, 1, 16, 2, 16) for _ in range(3)), r(g, 2, 16), r(g, 2, 16), 16,
                  u(g, 0.1, 0.5, 1, 16, 2, 1), 0.25, 1e-6, None, None, False, None, None)),
    at("ops.ttt.fused_chunk:FusedChunkTTTLinearFunction",
       lambda g: (*(r(g, 1, 16, 2, 16) for _ in range(3)), r(g, 2, 16), r(g, 2, 16), 16,
                  u(g, 0.1, 0.5, 1, 16, 2, 1), 0.25, 1e-6, None, None, False, None)),
]  # fmt: skip
CASES = MODULES + OPS + LATER
