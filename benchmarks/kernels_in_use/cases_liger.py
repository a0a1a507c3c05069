"""Liger-Kernel: its Triton kernels, in Triton's interpreter, and its chunked losses."""

import torch

from benchmarks.kernels_in_use._interpreter import install
from benchmarks.kernels_in_use._made import labels, log_softmax, r, softmax, u
from benchmarks.wild._case import Inputs, Published

PACKAGE = "liger-kernel"
FOLDER = "liger_kernel"
install()

REASONS = [
    ("liger_kernel.ops.cutile", "needs cuda.tile, which runs on an NVIDIA GPU alone"),
    ("liger_kernel.ops.backends._cutile", "needs cuda.tile, which runs on an NVIDIA GPU alone"),
    ("liger_kernel.ops.cute", "needs CuTe DSL (cutlass), which runs on an NVIDIA GPU alone"),
    ("liger_kernel.ops.backends._cutedsl", "needs CuTe DSL, which runs on an NVIDIA GPU alone"),
    ("liger_kernel.ops.backends._ascend", "needs an Ascend NPU"),
    ("liger_kernel.ops.dyt", "counts the multiprocessors of a GPU, and has no other way"),
    ("liger_kernel.ops.mlp", "asserts that its inputs are on a GPU"),
    ("liger_kernel.ops.fused_linear_scaled_cross_entropy:_Tensor", "needs a group of processes"),
    ("liger_kernel.backends.registry", "an example in a docstring's code, not a Function in use"),
    ("liger_kernel.chunked_loss.fused_linear_distillation", "a base class: its subclasses run"),
    ("liger_kernel.chunked_loss.fused_linear_p", "a base class: its subclasses run"),
    ("liger_kernel.chunked_loss.fused_linear_unpaired", "a base class: its subclasses run"),
]


def angles(g: torch.Generator, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    half = r(g, *shape[:-1], shape[-1] // 2, grad=False)
    whole = torch.cat((half, half), -1)
    return whole.cos(), whole.sin()


def preference(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Hidden states of two chosen and two rejected answers, the head's weight, and labels."""
    return r(g, 4, 3, 8), r(g, 10, 8), labels(g, 10, 4, 3)


def distillation(g: torch.Generator) -> tuple[object, ...]:
    teacher = (r(g, 4, 8, grad=False), r(g, 10, 8, grad=False))
    return (r(g, 4, 8), r(g, 10, 8), *teacher, labels(g, 10, 4), None, None,
            0.5, 0.5, 0.5, -100, 1.0, False)  # fmt: skip


def grpo(g: torch.Generator) -> tuple[object, ...]:
    logits = r(g, 2, 4, 8)
    chosen = labels(g, 8, 2, 3)
    old = logits.detach()[:, :-1].log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
    old = old + 0.1 * r(g, 2, 3, grad=False)
    reference = old + 0.1 * r(g, 2, 3, grad=False)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    return logits, old, reference, chosen, r(g, 2, grad=False), mask, 0.9, 0.04, 0.2, 0.4, False


def fused_grpo(g: torch.Generator) -> tuple[object, ...]:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    reference = log_softmax(g, 2, 3, 10, grad=False)[..., 0]
    old = log_softmax(g, 2, 3, 10, grad=False)[..., 0]
    given = (r(g, 2, 3, 8), r(g, 10, 8), labels(g, 10, 2, 3), mask, r(g, 2, grad=False), None)
    rest = (None, None, None, 0.04, 0.2, 0.2, "dapo", None, "token", 1.0, 1.05, 1.0, False, False)
    return (*given, reference, old, *rest)


def routing(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    index = torch.tensor([[0, 1], [1, 0], [0, 1]], dtype=torch.int32)
    return r(g, 3, 8), r(g, 2, 8, 8), r(g, 2, 8, 4), index, softmax(g, 3, 2)


def coefficients(g: torch.Generator) -> tuple[object, ...]:
    streams, channels = 2, 8
    many = streams * (streams + 2)
    scalars = (u(g, 0.5, 1.5, 1)[0].detach().requires_grad_() for _ in range(3))
    weights = (r(g, streams * channels, many), r(g, many))
    return (r(g, 3, streams, channels), *weights, *scalars, True, 3, 1e-6, 1e-4, 1e-6, 2.0)


def rope(g: torch.Generator) -> tuple[object, ...]:
    cosine, sine = angles(g, 1, 3, 8)
    return r(g, 1, 2, 3, 8), r(g, 1, 1, 3, 8), cosine, sine


def mrope(g: torch.Generator) -> tuple[object, ...]:
    cosine, sine = angles(g, 3, 1, 3, 8)
    return r(g, 1, 2, 3, 8), r(g, 1, 1, 3, 8), cosine, sine, [1, 1, 2]


def complex_rope(g: torch.Generator) -> tuple[object, ...]:
    turn = torch.polar(torch.ones(3, 4), r(g, 3, 4, grad=False))
    return r(g, 1, 3, 2, 8), r(g, 1, 3, 1, 8), turn


def tiled(g: torch.Generator) -> tuple[object, ...]:
    module = torch.nn.Linear(8, 8)
    module.load_state_dict({"weight": r(g, 8, 8, grad=False), "bias": r(g, 8, grad=False)})
    return (lambda it, x: torch.tanh(it(x))), module, r(g, 1, 4, 8), 2, list(module.parameters())


def at(name: str, inputs: Inputs, **more: str) -> Published:
    return Published(f"liger_kernel.{name}", inputs, **more)


CASES = [
    at("ops.attn_res:LigerAttnResFunction", lambda g: (r(g, 2, 3, 8), r(g, 8), r(g, 8), 1e-6)),
    at("ops.cross_entropy:LigerCrossEntropyFunction",
       lambda g: (r(g, 3, 8), labels(g, 8, 3), None)),
    at("ops.experimental.embedding:LigerEmbeddingFunction",
       lambda g: (r(g, 6, 8), labels(g, 6, 2, 3))),
    at("ops.fused_add_rms_norm:LigerFusedAddRMSNormFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8), r(g, 8), 1e-6)),
    at("ops.fused_ce_tvd:LigerFusedCETVDFunction",
       lambda g: (r(g, 3, 8), r(g, 3, 8, grad=False), labels(g, 8, 3))),
    at("ops.fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",
       lambda g: (r(g, 3, 8), r(g, 10, 8), labels(g, 10, 3))),
    at("ops.fused_linear_jsd:LigerFusedLinearJSDFunction",
       lambda g: (r(g, 3, 8), r(g, 10, 8), r(g, 3, 8, grad=False), r(g, 10, 8, grad=False))),
    at("ops.fused_linear_kl_div:LigerFusedLinearKLDivFunction",
       lambda g: (r(g, 3, 8), r(g, 10, 8), softmax(g, 3, 10, grad=False))),
    at("ops.fused_linear_scaled_cross_entropy:_FusedLinearPPOFallbackFunction",
       lambda g: (r(g, 3, 8), r(g, 10, 8), labels(g, 10, 3), 0.9, -100, True)),
    at("ops.fused_moe:LigerFusedMoEFunction", routing),
    at("ops.fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction",
       lambda g: (r(g, 1, 2, 6, 8), r(g, 1, 2, 6, 8), r(g, 1, 2, 6, 8), 3, 1, None)),
    at("ops.geglu:LigerGELUMulFunction", lambda g: (r(g, 3, 8), r(g, 3, 8))),
    at("ops.group_norm:LigerGroupNormFunction",
       lambda g: (r(g, 2, 4, 6), r(g, 4), r(g, 4), 4, 2, 1e-6)),
    at("ops.grpo_loss:GrpoLossFunction", grpo),
    at("ops.jsd:LigerJSDFunction",
       lambda g: (log_softmax(g, 3, 8), log_softmax(g, 3, 8, grad=False))),
    at("ops.kl_div:LigerKLDivLossFunction",
       lambda g: (log_softmax(g, 3, 8), softmax(g, 3, 8, grad=False))),
    at("ops.layer_norm:LigerLayerNormFunction", lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), 1e-6)),
    at("ops.llama4_rope:LigerLlama4RopeFunction", complex_rope),
    at("ops.mhc:LigerMHCCoeffsFunction", coefficients),
    at("ops.mhc:LigerMHCPreFunction", lambda g: (r(g, 3, 2, 8), r(g, 3, 2))),
    at("ops.mhc:LigerMHCPostResFunction",
       lambda g: (r(g, 3, 2, 8), r(g, 3, 8), r(g, 3, 2), r(g, 3, 2, 2))),
    at("ops.modulated_rms_norm:LigerModulatedRMSNormFunction",
       lambda g: (r(g, 2, 3, 8), r(g, 8), r(g, 2, 8), r(g, 2, 8), 1e-6)),
    at("ops.multi_token_attention:LigerMultiTokenAttentionFunction",
       lambda g: (r(g, 1, 2, 4, 4), r(g, 2, 2, 3, 3), r(g, 2), 1, 1)),
    at("ops.poly_norm:LigerPolyNormFunction",
       lambda g: (r(g, 3, 8), r(g, 3), torch.ones((), requires_grad=True), 1e-6)),
    at("ops.qwen2vl_mrope:LigerQwen2VLMRopeFunction", mrope),
    at("ops.relu_squared:LigerReLUSquaredFunction", lambda g: (r(g, 3, 8),)),
    at("ops.rms_norm:LigerRMSNormFunction", lambda g: (r(g, 3, 8), r(g, 8), 1e-6)),
    at("ops.rope:LigerRopeFunction", rope),
    at("ops.softmax:LigerSoftmaxFunction", lambda g: (r(g, 3, 8),)),
    at("ops.sparsemax:LigerSparsemaxFunction", lambda g: (r(g, 3, 8), -1)),
    at("ops.swiglu:LigerSiLUMulFunction", lambda g: (r(g, 3, 8), r(g, 3, 8))),
    at("ops.swiglu:LigerFusedGateUpSiLUMulFunction", lambda g: (r(g, 3, 16),)),
    at("ops.tiled_mlp:LigerTiledMLPFunction", tiled),
    at("ops.tvd:LigerTVDLossFunction", lambda g: (softmax(g, 3, 8), softmax(g, 3, 8, grad=False))),
    at("ops.vocab_parallel_cross_entropy:LigerVocabParallelCEFunction",
       lambda g: (r(g, 3, 2, 8), labels(g, 8, 3, 2), None, -100, 0.0, "hf", "global")),
    at("chunked_loss.cosine_similarity_loss:LigerFusedLinearCosineSimilarityFunction",
       distillation),
    at("chunked_loss.jsd_loss:LigerFusedLinearJSDFunction", distillation),
    at("chunked_loss.cpo_loss:LigerFusedLinearCPOFunction",
       lambda g: (*preference(g), None, -100, 0.1, 1.0, 0.0, True, False)),
    at("chunked_loss.dpo_loss:LigerFusedLinearDPOFunction",
       lambda g: (*preference(g), None, r(g, 4, 3, 8, grad=False), r(g, 10, 8, grad=False), None,
                  -100, 0.1, False, False)),
    at("chunked_loss.orpo_loss:LigerFusedLinearORPOFunction",
       lambda g: (*preference(g), None, -100, 0.1, True, None, False)),
    at("chunked_loss.simpo_loss:LigerFusedLinearSimPOFunction",
       lambda g: (*preference(g), None, -100, 0.1, 1.0, 0.0, False, False)),
    at("chunked_loss.kto_loss:LigerFusedLinearKTOFunction",
       lambda g: (*preference(g), torch.tensor([True, False, True, False]), None,
                  r(g, 4, 3, 8, grad=False), r(g, 10, 8, grad=False), None, None, -100, 0.1,
                  False)),
    at("chunked_loss.grpo_loss:LigerFusedLinearGRPOFunction", fused_grpo),
    at("chunked_loss.fused_linear_ppo:_ChunkedSelectiveLogProbFunction",
       lambda g: (r(g, 3, 8), r(g, 10, 8), labels(g, 10, 3), None, 1.0, 4)),
]  # fmt: skip
