"""Activation checkpointing in graphs."""

from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from pullback.internal.torch import CHECKPOINT_CONTEXTS

__all__ = ["CHECKPOINT", "preserve_random_state"]

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def preserve_random_state(graph_module: fx.GraphModule) -> None:
    """Let what is checkpointed in a graph draw the same random numbers when it runs again.

    torch's operator leaves them to the compiler behind the graph; run as it is, it draws others.
    """
    for part in graph_module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.target is CHECKPOINT:
                    node.target = _checkpointed
            part.recompile()


def _checkpointed(body: fx.GraphModule, *args: Any, **options: Any) -> Any:
    # Compilers preserve it whatever the caller said, and stochastic rounding needs it.
    options |= {"use_reentrant": False, "preserve_rng_state": True}
    if CHECKPOINT_CONTEXTS in body.meta:
        options["context_fn"] = body.meta[CHECKPOINT_CONTEXTS]
    return checkpoint(body, *args, **options)
