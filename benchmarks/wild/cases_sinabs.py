"""sinabs: spikes and quantisation."""

from benchmarks.wild._case import Published, positive, randn

PACKAGE = "sinabs"


def _window(state, threshold):
    from sinabs.activation import SingleExponential

    return SingleExponential()(state, threshold)


CASES = [
    Published(
        "sinabs.activation.quantize:Quantize",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    ),
    Published(
        "sinabs.activation.spike_generation:MultiSpike",
        lambda g: (positive(g, 3, 4), 0.7, _window),
    ),
    Published(
        "sinabs.activation.spike_generation:MaxSpikeInner",
        lambda g: (positive(g, 3, 4), 2, 0.4, _window),
    ),
    Published(
        "sinabs.activation.spike_generation:SingleSpike",
        lambda g: (positive(g, 3, 4), 1.0, _window),
    ),
]
