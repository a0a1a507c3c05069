"""Unsloth: its Triton kernels, in Triton's interpreter, and what is plain torch.

The package itself refuses to be imported without a GPU; its modules do not.
"""

import importlib
import os
import tempfile
import types

import torch

from benchmarks.kernels_in_use._interpreter import bare, install
from benchmarks.kernels_in_use._made import labels, r
from benchmarks.wild._case import Inputs, Published

PACKAGE = "unsloth"
FOLDER = "unsloth"
install(active=True)
os.environ["UNSLOTH_IS_PRESENT"] = "1"  # as the package says to its helper
os.environ["UNSLOTH_COMPILE_LOCATION"] = tempfile.mkdtemp()  # or it writes where it is started
for _package in ("unsloth", "unsloth.kernels", "unsloth.models", "unsloth.utils"):
    bare(_package)
REASONS = [
    ("unsloth.context_parallel", "needs a group of processes"),
    ("unsloth.models.tp_native", "needs a group of processes"),
    ("unsloth.utils.ulysses", "needs a group of processes"),
    ("unsloth.import_fixes", "made inside of a function that mends another package"),
    ("unsloth.kernels.fp8", "needs float8 kernels of a GPU"),
    ("unsloth.kernels.nvfp4", "needs float4 kernels of a GPU"),
    ("unsloth.kernels.moe", "asks the package itself, which refuses to be imported without a GPU"),
    ("unsloth.kernels.large_head_attention", "not defined without a GPU"),
    ("unsloth.models.loader_utils", "needs a library of data sets"),
    ("unsloth.utils", "needs an attention kernel of a GPU"),
]
SHAPE = (1, 3, 2, 8)  # batch, positions, heads, features


def turns(g: torch.Generator, features: int = SHAPE[3]) -> tuple[torch.Tensor, torch.Tensor]:
    half = r(g, SHAPE[1], features // 2, grad=False)
    whole = torch.cat((half, half), -1)
    return whole.cos(), whole.sin()


def low_rank(g: torch.Generator, rows: int, columns: int) -> tuple[object, ...]:
    """A frozen weight, no state of a quantisation, the two factors, their scale."""
    return r(g, rows, columns, grad=False), None, r(g, 2, columns), r(g, rows, 2), 0.5


def kernels(name: str) -> types.ModuleType:
    return importlib.import_module(f"unsloth.kernels.{name}")


def mlp(g: torch.Generator) -> tuple[object, ...]:
    forms = kernels("swiglu")
    layers = (*low_rank(g, 16, 8), *low_rank(g, 16, 8), *low_rank(g, 8, 16))
    given = (forms.swiglu_fg_kernel, forms.swiglu_DWf_DW_dfg_kernel, False)
    return (r(g, 1, 3, 8), *layers, *given)


def cross_entropy(g: torch.Generator) -> tuple[object, ...]:
    import triton.language as tl

    # The interpreter finds the language's own `cast` by that name alone.
    kernels("cross_entropy_loss").triton_cast = lambda *given: tl.cast(*given)  # noqa: PLW0108 - by name, later
    return r(g, 3, 8), labels(g, 8, 3), 0, 0


def norm_rotary(*given: object) -> object:
    """As its caller calls it: what it asks of the arguments, its own path takes otherwise."""
    queries, keys, *weights = given[:4]
    features = queries.shape[-1]
    if features < 16 or features & (features - 1):
        raise RuntimeError("a power of two of features, 16 at least")
    if any(it.stride(-1) != 1 for it in (queries, keys)):
        raise RuntimeError("a dense last dimension alone")
    if any(it.shape[-1] != features for it in (*weights, *given[4:6])):
        raise RuntimeError("weights and angles of other sizes")
    return kernels("qk_norm_rope").Fast_QK_Norm_RoPE.apply(*given)


def tiled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Two tiles of a layer with its parameters."""
    module = importlib.import_module("unsloth.models._tiled_mlp_ddp")

    def forward(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, weight, bias).tanh()

    return module._TiledMLPWithParams.apply(forward, None, x, True, 2, None, weight, bias)


def int4(g: torch.Generator) -> tuple[object, ...]:
    """Eight rows of 32 weights of four bits, in groups of 16."""
    scale = torch.rand(8, 2, generator=g) + 0.5
    state = kernels("int4_packed").Int4QuantState(scale, None, None, (8, 32), 4, 16, torch.float32)
    packed = torch.randint(-(2**31), 2**31, (8, 4), generator=g).int()
    return r(g, 3, 32), packed, types.SimpleNamespace(quant_state=state), r(g, 8)


def float4(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Six rows of 32 weights of four bits, and the power of two that each is scaled by."""
    packed = torch.randint(256, (6, 16), generator=g).to(torch.uint8)
    return r(g, 3, 32), packed, torch.full((6, 1), 126, dtype=torch.uint8)


def at(name: str, inputs: Inputs, **more: object) -> Published:
    return Published(f"unsloth.{name}", inputs, **more)


CASES = [
    at("kernels.bnb_override:_NF4Linear",
       lambda g: (r(g, 3, 8), r(g, 6, 8, grad=False), None, None)),
    at("kernels.cross_entropy_loss:Fast_CrossEntropyLoss", cross_entropy),
    at("kernels.fast_lora:LoRA_MLP", mlp),
    at("kernels.fast_lora:LoRA_QKV",
       lambda g: (r(g, 1, 3, 8), *low_rank(g, 8, 8), *low_rank(g, 8, 8), *low_rank(g, 8, 8),
                  False)),
    at("kernels.fast_lora:LoRA_W", lambda g: (r(g, 1, 3, 8), *low_rank(g, 6, 8))),
    at("kernels.layernorm:Fast_Layernorm", lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), 1e-6)),
    at("kernels.qk_norm_rope:Fast_QK_Norm_RoPE",
       lambda g: (r(g, 1, 3, 2, 16), r(g, 1, 3, 2, 16), r(g, 16, grad=False),
                  r(g, 16, grad=False), *turns(g, 16), torch.zeros(1, dtype=torch.int32), 1e-6,
                  1e-6, False), call=norm_rotary),
    at("kernels.rms_layernorm:Fast_RMS_Layernorm",
       lambda g: (r(g, 3, 8), r(g, 8, grad=False), 1e-6)),
    at("kernels.rope_embedding:Fast_RoPE_Embedding", lambda g: (r(g, *SHAPE), *turns(g))),
    at("kernels.rope_embedding:Fast_RoPE_Embedding_QK",
       lambda g: (r(g, 1, 2, 3, 8), r(g, 1, 2, 3, 8), *turns(g), None)),
    at("kernels.rope_embedding:Fast_RoPE_Embedding_QK_Positions",
       lambda g: (r(g, 1, 2, 3, 8), r(g, 1, 2, 3, 8), *turns(g))),
    at("kernels.rope_embedding:Slow_RoPE_Embedding",
       lambda g: (r(g, 1, 2, 3, 8), *turns(g), None)),
    at("models._block_compile:_CloneGrad", lambda g: (r(g, 3, 8),)),
    at("models._tiled_mlp_ddp:_TiledMLPWithParams", lambda g: (r(g, 2, 4, 8), r(g, 8, 8), r(g, 8)),
       call=tiled),
    at("models.compressed_tensors_int4:_Int4LinearFunction", int4),
    at("models.mxfp4_compressed_linear:_Mxfp4PackedLinearFunction",
       lambda g: (*float4(g), r(g, 6))),
    at("models.mxfp4_compressed_linear:_Mxfp4PackedMatmulFunction",
       lambda g: (*float4(g), False, r(g, 6))),
    at("models.diffusion_loss:_ChunkedCrossEntropy",
       lambda g: (r(g, 3, 8), r(g, 10, 8), r(g, 10), labels(g, 10, 3), torch.ones(3), None, False)),
]  # fmt: skip
