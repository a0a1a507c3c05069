"""brevitas: quantisation-aware training."""

from benchmarks.wild._case import Published, randn, uniform

PACKAGE = "brevitas"
_MODULE = "brevitas.ops.autograd_ste_ops"


def _one(name):
    return Published(
        f"{_MODULE}:{name}",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    )


def _bounds(generator):
    low = uniform(generator, -1.0, -0.5, 3, 4, grad=False)
    high = uniform(generator, 0.5, 1.0, 3, 4, grad=False)
    return randn(generator, 3, 4), low, high


CASES = [
    _one("RoundToZeroSteFn"),
    _one("DPURoundSteFn"),
    _one("CeilSteFn"),
    _one("FloorSteFn"),
    _one("BinarySignSteFn"),
    _one("TernarySignSteFn"),
    _one("RoundSteFn"),
    _one("AbsBinarySignGradFn"),
    Published(f"{_MODULE}:ScalarClampSteFn", lambda g: (randn(g, 3, 4), -0.7, 0.6)),
    Published(f"{_MODULE}:ScalarClampMinSteFn", lambda g: (randn(g, 3, 4), -0.7)),
    Published(f"{_MODULE}:TensorClampSteFn", _bounds),
    Published(
        f"{_MODULE}:InplaceTensorClampSteFn",
        _bounds,
        call=lambda apply, x, low, high: apply(x.clone(), low, high),
        notes="changes its input in place",
    ),
]
