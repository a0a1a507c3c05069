"""torch's own differentiable functions with inputs: right by definition, so never to be flagged."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.specimens._specimen import normal, positive

__all__ = ["TORCH_FUNCTIONS"]


def simplex(*shape: int) -> torch.Tensor:
    return normal(*shape, seed=6).detach().softmax(-1).requires_grad_()


def definite(n: int) -> torch.Tensor:
    x = normal(n, n).detach()
    return (x @ x.mT + n * torch.eye(n, dtype=x.dtype)).requires_grad_()


LABELS = torch.tensor([0, 2, 2, 1])
MASK = torch.tensor([True, False, True, True, False])

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]

TORCH_FUNCTIONS: dict[str, Case] = {
    name: (getattr(F, name), lambda: (normal(3, 5),))
    for name in (
        "relu", "relu6", "elu", "celu", "selu", "leaky_relu", "gelu", "silu", "mish", "softplus",
        "softsign", "tanhshrink", "hardtanh", "hardswish", "hardsigmoid", "hardshrink",
        "softshrink", "logsigmoid", "sigmoid", "tanh", "normalize",
    )
} | {
    f"torch.{name}": (getattr(torch, name), lambda: (normal(3, 5),))
    for name in (
        "sin", "exp", "abs", "square", "sign", "round", "sinc", "atan", "asinh", "erf", "expm1",
        "cumsum", "logcumsumexp",
    )
    if name not in ("cumsum", "logcumsumexp")
} | {
    f"torch.{name}.positive": (getattr(torch, name), lambda: (positive(3, 5),))
    for name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p", "lgamma", "digamma", "log2")
} | {
    "softmax": (lambda x: F.softmax(x, -1), lambda: (normal(3, 5),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), lambda: (normal(3, 5),)),
    "softmin": (lambda x: F.softmin(x, -1), lambda: (normal(3, 5),)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda: (normal(3, 5),)),
    "masked softmax": (
        lambda x, m: x.masked_fill(~m, -torch.inf).softmax(-1), lambda: (normal(3, 5), MASK)
    ),
    "glu": (F.glu, lambda: (normal(3, 4),)),
    "prelu": (F.prelu, lambda: (normal(3, 5), positive(1))),
    "linear": (F.linear, lambda: (normal(3, 5), normal(4, 5), normal(4))),
    "bilinear": (F.bilinear, lambda: (normal(3, 5), normal(3, 2), normal(4, 5, 2))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
                   lambda: (normal(3, 5), positive(5), normal(5))),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w), lambda: (normal(3, 5), positive(5))),
    "group_norm": (lambda x: F.group_norm(x, 2), lambda: (normal(3, 4, 6),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda: (normal(6, 5),)),
    "instance_norm": (F.instance_norm, lambda: (normal(3, 4, 6),)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), lambda: (normal(3, 4, 6),)),
    "conv1d": (F.conv1d, lambda: (normal(2, 3, 7), normal(4, 3, 2), normal(4))),
    "conv2d": (F.conv2d, lambda: (normal(2, 3, 6, 6), normal(4, 3, 2, 2))),
    "conv_transpose1d": (F.conv_transpose1d, lambda: (normal(2, 3, 7), normal(3, 4, 2))),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), lambda: (normal(2, 3, 8),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), lambda: (normal(2, 3, 6, 6),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), lambda: (normal(2, 3, 6, 6),)),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 2), lambda: (positive(2, 3, 8),)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), lambda: (normal(2, 3, 8),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"),
                    lambda: (normal(2, 3, 6),)),
    "pad": (lambda x: F.pad(x, (1, 2), "reflect"), lambda: (normal(2, 3, 6),)),
    "unfold": (lambda x: F.unfold(x, 2), lambda: (normal(2, 3, 6, 6),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda: (normal(2, 4, 3, 3),)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
                    lambda: (normal(2, 3, 5, 5), normal(2, 4, 4, 2))),
    "embedding": (F.embedding, lambda: (LABELS, normal(3, 5))),
    "embedding_bag": (lambda w, i: F.embedding_bag(i, w, torch.tensor([0, 2])),
                      lambda: (normal(3, 5), LABELS)),
    "cosine_similarity": (F.cosine_similarity, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "pairwise_distance": (F.pairwise_distance, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "pdist": (F.pdist, lambda: (normal(4, 5),)),
    "cdist": (torch.cdist, lambda: (normal(3, 5), normal(4, 5, seed=4))),
    "mse_loss": (F.mse_loss, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "l1_loss": (F.l1_loss, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "huber_loss": (F.huber_loss, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "smooth_l1_loss": (F.smooth_l1_loss, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "cross_entropy": (F.cross_entropy, lambda: (normal(4, 3), LABELS)),
    "cross_entropy.soft": (F.cross_entropy, lambda: (normal(4, 3), simplex(4, 3))),
    "nll_loss": (F.nll_loss, lambda: (normal(4, 3), LABELS)),
    "kl_div": (lambda x, t: F.kl_div(x.log_softmax(-1), t, reduction="batchmean"),
               lambda: (normal(4, 3), simplex(4, 3).detach())),
    "binary_cross_entropy_with_logits": (
        lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()),
        lambda: (normal(3, 5), normal(3, 5, seed=4)),
    ),
    "poisson_nll_loss": (lambda x: F.poisson_nll_loss(x, torch.ones_like(x)),
                         lambda: (normal(3, 5),)),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, torch.ones_like(x)),
                         lambda: (normal(3, 5),)),
    "multi_margin_loss": (F.multi_margin_loss, lambda: (normal(4, 3), LABELS)),
    "triplet_margin_loss": (
        F.triplet_margin_loss,
        lambda: (normal(3, 5), normal(3, 5, seed=4), normal(3, 5, seed=5)),
    ),
    "scaled_dot_product_attention": (
        F.scaled_dot_product_attention,
        lambda: (normal(2, 3, 5), normal(2, 4, 5, seed=4), normal(2, 4, 5, seed=5)),
    ),
    "matmul": (torch.matmul, lambda: (normal(3, 5), normal(5, 4))),
    "bmm": (torch.bmm, lambda: (normal(2, 3, 5), normal(2, 5, 4))),
    "einsum": (lambda a, b: torch.einsum("bi,bj->bij", a, b), lambda: (normal(2, 3), normal(2, 5))),
    "where": (torch.where, lambda: (MASK, normal(3, 5), normal(3, 5))),
    "maximum": (torch.maximum, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "minimum": (torch.minimum, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), lambda: (normal(3, 5),)),
    "pow": (torch.pow, lambda: (positive(3, 5), normal(3, 5))),
    "atan2": (torch.atan2, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "hypot": (torch.hypot, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "div": (torch.div, lambda: (normal(3, 5), positive(3, 5))),
    "addcdiv": (torch.addcdiv, lambda: (normal(3), normal(3), positive(3))),
    "logaddexp": (torch.logaddexp, lambda: (normal(3, 5), normal(3, 5, seed=4))),
    "lerp": (torch.lerp, lambda: (normal(3, 5), normal(3, 5, seed=4), positive(3, 5))),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (normal(3, 5),)),
    "cumprod": (lambda x: x.cumprod(-1), lambda: (normal(3, 5),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), lambda: (normal(3, 5),)),
    "cummax": (lambda x: x.cummax(-1).values, lambda: (normal(3, 5),)),
    "prod": (lambda x: x.prod(-1), lambda: (normal(3, 5),)),
    "mean": (lambda x: x.mean(0), lambda: (normal(3, 5),)),
    "var": (lambda x: x.var(-1), lambda: (normal(3, 5),)),
    "std": (lambda x: x.std(-1), lambda: (normal(3, 5),)),
    "norm": (lambda x: x.norm(dim=-1), lambda: (normal(3, 5),)),
    "norm.1": (lambda x: torch.linalg.vector_norm(x, 1, -1), lambda: (normal(3, 5),)),
    "norm.3": (lambda x: torch.linalg.vector_norm(x, 3, -1), lambda: (normal(3, 5),)),
    "norm.inf": (lambda x: torch.linalg.vector_norm(x, torch.inf, -1), lambda: (normal(3, 5),)),
    "amax": (lambda x: x.amax(-1), lambda: (normal(3, 5),)),
    "median": (lambda x: x.median(-1).values, lambda: (normal(3, 5),)),
    "sort": (lambda x: x.sort(-1).values, lambda: (normal(3, 5),)),
    "topk": (lambda x: x.topk(2).values, lambda: (normal(3, 5),)),
    "gather": (lambda x, i: x.gather(-1, i.unsqueeze(-1)), lambda: (normal(4, 3), LABELS)),
    "index_select": (lambda x, i: x.index_select(0, i), lambda: (normal(3, 2), LABELS)),
    "index_add": (lambda x, i: torch.zeros(3, 2, dtype=x.dtype).index_add(0, i, x),
                  lambda: (normal(4, 2), LABELS)),
    "scatter_reduce.amax": (
        lambda x, i: torch.zeros(3, dtype=x.dtype).scatter_reduce(0, i, x, "amax"),
        lambda: (normal(4), LABELS),
    ),
    "flip": (lambda x: x.flip(0), lambda: (normal(3, 5),)),
    "roll": (lambda x: x.roll(2, -1), lambda: (normal(3, 5),)),
    "cat": (lambda a, b: torch.cat([a, b]), lambda: (normal(3, 5), normal(2, 5))),
    "diff": (lambda x: x.diff(dim=-1), lambda: (normal(3, 5),)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), lambda: (normal(3, 6),)),
    "cholesky": (torch.linalg.cholesky, lambda: (definite(4),)),
    "inv": (torch.linalg.inv, lambda: (definite(4),)),
    "det": (torch.linalg.det, lambda: (normal(4, 4),)),
    "slogdet": (lambda a: torch.linalg.slogdet(a)[1], lambda: (normal(4, 4),)),
    "solve": (torch.linalg.solve, lambda: (definite(4), normal(4, 2))),
    "eigvalsh": (torch.linalg.eigvalsh, lambda: (definite(4),)),
    "svdvals": (torch.linalg.svdvals, lambda: (normal(4, 3),)),
    "qr": (torch.linalg.qr, lambda: (normal(4, 3),)),
    "matrix_exp": (torch.linalg.matrix_exp, lambda: (normal(3, 3),)),
    "trace": (torch.trace, lambda: (normal(4, 4),)),
    "triu": (torch.triu, lambda: (normal(4, 4),)),
    "cross": (torch.linalg.cross, lambda: (normal(4, 3), normal(4, 3, seed=4))),
    "xlogy": (torch.xlogy, lambda: (positive(3, 5), positive(3, 5))),
    "fmod": (lambda x: torch.fmod(x, 1.3), lambda: (normal(3, 5),)),
    "remainder": (lambda x: torch.remainder(x, 1.3), lambda: (normal(3, 5),)),
    "complex abs": (torch.abs, lambda: (normal(3, dtype=torch.complex128),)),
    "complex product": (
        torch.mul, lambda: (normal(3, dtype=torch.complex128), normal(3, dtype=torch.complex128))
    ),
}  # fmt: skip
