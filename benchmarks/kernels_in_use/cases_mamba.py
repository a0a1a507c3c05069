"""Mamba: its Triton kernels, in Triton's interpreter."""

import torch

from benchmarks.kernels_in_use._interpreter import bare, install
from benchmarks.kernels_in_use._made import r, u
from benchmarks.wild._case import Published

PACKAGE = "mamba-ssm"
FOLDER = "mamba_ssm"
install()
bare("mamba_ssm")  # its __init__ asks for the CUDA extension
REASONS = [
    ("mamba_ssm.distributed", "needs a group of processes"),
    ("mamba_ssm.ops.selective_scan_interface", "needs its CUDA extension"),
    ("mamba_ssm.ops.triton.ssd_combined:MambaSplit", "needs the CUDA kernels of causal-conv1d"),
    ("mamba_ssm.ops.triton.mamba3", "asserts that its inputs are on a GPU"),
    ("mamba_ssm.ops.tilelang", "needs TileLang, which compiles for a GPU alone"),
]


def combined(g: torch.Generator) -> tuple[object, ...]:
    """Two heads of 16 features, one group of states of 16, two chunks of 16."""
    scan = (r(g, 1, 32, 2, 16), u(g, 0.1, 0.5, 1, 32, 2), -u(g, 0.5, 1.0, 2, grad=False))
    states = (r(g, 1, 32, 1, 16), r(g, 1, 32, 1, 16))
    return (scan[0], scan[1], scan[2].requires_grad_(), *states, 16, r(g, 2))


def chunks(g: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Inputs, steps and decays of two chunks of 16, two heads of 16 features."""
    decay = -u(g, 0.1, 0.5, 1, 2, 2, 16, grad=False).cumsum(-1)
    return r(g, 1, 32, 2, 16), u(g, 0.1, 0.5, 1, 2, 2, 16), decay.requires_grad_()


CASES = [
    Published("mamba_ssm.ops.triton.k_activations:SwiGLU", lambda g: (r(g, 3, 16),)),
    Published("mamba_ssm.ops.triton.layer_norm:LayerNormFn",
              lambda g: (r(g, 3, 8), r(g, 8), r(g, 8))),
    Published("mamba_ssm.ops.triton.layer_norm:LayerNormLinearFn",
              lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), r(g, 4, 8), r(g, 4))),
    Published("mamba_ssm.ops.triton.layernorm_gated:LayerNormFn",
              lambda g: (r(g, 3, 8), r(g, 8), r(g, 8), r(g, 3, 8))),
    Published("mamba_ssm.ops.triton.ssd_chunk_scan:ChunkScanFn",
              lambda g: (r(g, 1, 32, 1, 16), r(g, 1, 32, 1, 16), *chunks(g), r(g, 1, 2, 2, 16, 16),
                         r(g, 2), r(g, 1, 32, 2, 16))),
    Published("mamba_ssm.ops.triton.ssd_chunk_state:ChunkStateFn",
              lambda g: (r(g, 1, 32, 1, 16), *chunks(g))),
    Published("mamba_ssm.ops.triton.ssd_combined:MambaChunkScanCombinedFn", combined),
    Published("mamba_ssm.ops.triton.ssd_state_passing:StatePassingFn",
              lambda g: (r(g, 1, 3, 2, 16), -u(g, 0.1, 0.5, 1, 2, 3))),
]  # fmt: skip
