"""snntorch: surrogate gradients of spikes."""

from benchmarks.wild._case import Published, randn

PACKAGE = "snntorch"
_MODULE = "snntorch.surrogate"


def _surrogate(name, *settings):
    expression = ", ".join(["torch.randn(3, 4, dtype=torch.float64)", *map(str, settings)])
    return Published(
        f"{_MODULE}:{name}",
        lambda g: (randn(g, 3, 4), *settings),
        command=expression if name in ("Triangular", "ATan") else "",
    )


def _fast_sigmoid(input_, cotangent, spikes):
    return cotangent / (1 + 25 * input_.abs()) ** 2


CASES = [
    _surrogate("StraightThroughEstimator"),
    _surrogate("Triangular", 1.0),
    _surrogate("FastSigmoid", 25.0),
    _surrogate("ATan", 2.0),
    _surrogate("Heaviside"),
    _surrogate("Sigmoid", 25.0),
    _surrogate("SpikeRateEscape", 1.0, 25.0),
    _surrogate("SparseFastSigmoid", 25.0, 1.0),
    _surrogate("CustomSurrogate", _fast_sigmoid),
    Published("snntorch.functional.quant:StateQuant", lambda g: (randn(g, 3, 4), _levels())),
]


def _levels():
    import torch

    return torch.linspace(-2, 2, 9, dtype=torch.float64)


# Published, and its backward cannot be called: what the checker says of it is in the second table.
UNUSABLE = [
    Published(
        f"{_MODULE}:LeakySpikeOperator",
        lambda g: (randn(g, 3, 4), 0.1),
        command="torch.randn(3, 4, dtype=torch.float64), 0.1",
    )
]
