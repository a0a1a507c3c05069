"""memory-efficient-attention-pytorch: attention by blocks."""

import torch

from benchmarks.wild._case import Published, randn

PACKAGE = "memory-efficient-attention-pytorch"
_PACKAGE = "memory_efficient_attention_pytorch"


def _heads(generator):
    return [randn(generator, 1, 2, 4, 3, dtype=torch.float32) for _ in range(3)]


def _unit_heads(generator):
    """As the module of the package gives them: queries and keys of length one."""
    queries, keys, values = _heads(generator)
    unit = [torch.nn.functional.normalize(t, dim=-1).detach() for t in (queries, keys)]
    return [*(t.requires_grad_() for t in unit), values]


CASES = [
    Published(
        f"{_PACKAGE}.flash_attention:FlashAttentionFunction",
        lambda g: (*_heads(g), None, False, 2, 2),
    ),
    Published(
        f"{_PACKAGE}.cosine_sim_flash_attention:FlashAttentionFunction",
        lambda g: (*_unit_heads(g), None, 8.0, False, 2, 2),
    ),
]
