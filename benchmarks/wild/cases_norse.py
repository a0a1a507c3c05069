"""norse: surrogate gradients of spikes."""

from benchmarks.wild._case import Published, randn

PACKAGE = "norse"
_MODULE = "norse.torch.functional.threshold"


def _threshold(name, setting):
    return Published(
        f"{_MODULE}:{name}",
        lambda g: (randn(g, 3, 4), setting),
        command=f"torch.randn(3, 4, dtype=torch.float64), {setting}"
        if name in ("HeaviErfc", "Triangle")
        else "",
    )


CASES = [
    _threshold("HeaviErfc", 1.0),
    _threshold("HeaviTanh", 1.0),
    _threshold("HeaviCirc", 1.0),
    _threshold("Triangle", 1.0),
    Published("norse.torch.functional.superspike:SuperSpike", lambda g: (randn(g, 3, 4), 100.0)),
]
