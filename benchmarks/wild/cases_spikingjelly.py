"""spikingjelly: surrogate gradients of spikes, quantisers."""

from benchmarks.wild._case import Published, randn

PACKAGE = "spikingjelly"
_SURROGATE = "spikingjelly.activation_based.surrogate"
_QUANTIZE = "spikingjelly.activation_based.quantize"


def _one(module, name, *settings):
    expression = ", ".join(["torch.randn(3, 4, dtype=torch.float64)", *map(str, settings)])
    return Published(
        f"{module}:{name}",
        lambda g: (randn(g, 3, 4), *settings),
        command=expression if name in ("piecewise_exp", "ClampATGF") else "",
    )


CASES = [
    _one(_SURROGATE, "piecewise_quadratic", 1.0),
    _one(_SURROGATE, "piecewise_exp", 1.0),
    _one(_SURROGATE, "sigmoid", 4.0),
    _one(_SURROGATE, "soft_sign", 2.0),
    _one(_SURROGATE, "super_spike", 1.0),
    _one(_SURROGATE, "atan", 2.0),
    _one(_SURROGATE, "nonzero_sign_log_abs", 1.0),
    _one(_SURROGATE, "erf", 2.0),
    _one(_SURROGATE, "deterministic_pass"),
    _one(_QUANTIZE, "RoundATGF"),
    _one(_QUANTIZE, "ClampATGF", -0.7, 0.6),
]
