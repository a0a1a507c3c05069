"""pypose: Lie groups, with setup_context and without jvp."""

import torch

from benchmarks.wild._case import Published, randn

PACKAGE = "pypose"
_MODULE = "pypose.lietensor.operation"


def _rotation(generator, number=2):
    quaternion = randn(generator, number, 4, grad=False)
    return torch.nn.functional.normalize(quaternion, dim=-1)


def _pose(generator, number=2):
    return torch.cat([randn(generator, number, 3, grad=False), _rotation(generator, number)], -1)


def _group(generator, group):
    return (_rotation if group == "SO3" else _pose)(generator).requires_grad_()


def _width(group):
    return 3 if group == "SO3" else 6


def _log(group):
    return Published(f"{_MODULE}:{group}_Log", lambda g: (_group(g, group),))


def _exp(group):
    return Published(
        f"{_MODULE}:{group.lower()}_Exp",
        lambda g: (randn(g, 2, _width(group)),),
        gradient="surrogate",
        command=f"torch.randn(2, {_width(group)}, dtype=torch.float64)",
    )


def _act(group):
    return Published(f"{_MODULE}:{group}_Act", lambda g: (_group(g, group), randn(g, 2, 3)))


def _multiply(group):
    return Published(f"{_MODULE}:{group}_Mul", lambda g: (_group(g, group), _group(g, group)))


def _invert(group):
    return Published(f"{_MODULE}:{group}_Inv", lambda g: (_group(g, group),))


def _adjoint(group):
    return Published(
        f"{_MODULE}:{group}_AdjXa", lambda g: (_group(g, group), randn(g, 2, _width(group)))
    )


CASES = [
    build(group)
    for group in ("SO3", "SE3")
    for build in (_log, _exp, _act, _multiply, _invert, _adjoint)
]
