"""lxt: layer-wise relevance propagation, backward passes that are no derivatives."""

from benchmarks.wild._case import Published, positive, randn

PACKAGE = "lxt"
_FUNCTIONAL = "lxt.explicit.functional"
_RULES = "lxt.explicit.rules"
CASES = [
    Published(
        f"{_FUNCTIONAL}:softmax_fn",
        lambda g: (randn(g, 3, 4), -1),
        gradient="surrogate",
        command="torch.randn(3, 4, dtype=torch.float64), -1",
    ),
    Published(
        f"{_FUNCTIONAL}:linear_epsilon_fn",
        lambda g: (randn(g, 3, 4), randn(g, 2, 4, grad=False), randn(g, 2, grad=False)),
    ),
    Published(f"{_FUNCTIONAL}:matmul_fn", lambda g: (randn(g, 2, 3, 4), randn(g, 2, 4, 2))),
    Published(f"{_FUNCTIONAL}:add2_tensors_fn", lambda g: (positive(g, 3, 4), positive(g, 3, 4))),
    Published(
        f"{_FUNCTIONAL}:mul2_fn",
        lambda g: (randn(g, 3, 4), randn(g, 3, 4)),
        gradient="surrogate",
        command="torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)",
    ),
    Published(f"{_FUNCTIONAL}:mean_fn", lambda g: (positive(g, 3, 4), -1, True)),
    Published(
        f"{_FUNCTIONAL}:rms_norm_identity_fn",
        lambda g: (randn(g, 3, 4), randn(g, 4, grad=False), 1e-6),
    ),
    Published(
        f"{_FUNCTIONAL}:layer_norm_grad_fn",
        lambda g: (randn(g, 3, 4), randn(g, 4, grad=False), randn(g, 4, grad=False), 1e-6),
    ),
    Published(f"{_FUNCTIONAL}:normalize_identity_fn", lambda g: (randn(g, 3, 4), 2, -1, 1e-8)),
    Published(f"{_RULES}:identity_fn", lambda g: (_tanh, randn(g, 3, 4))),
    Published(f"{_RULES}:epsilon_lrp_fn", lambda g: (_tanh, 1e-6, randn(g, 3, 4))),
    Published(f"{_RULES}:uniform_rule_fn", lambda g: (_product, randn(g, 3, 4), randn(g, 3, 4))),
]


def _tanh(x):
    return x.tanh()


def _product(x, y):
    return x * y
