"""Motions in programs of torch.export: their gradient is right, or refused by name."""

import pytest
import torch

from pullback.errors import UnsupportedError
from pullback.trajectory import (
    Limits,
    Preconditioner,
    State,
    bspline,
    differentiate,
    integrate,
    minimum_jerk,
    quintic,
    rest,
)

TIMES = torch.tensor([0.0, 0.7, 1.5, 2.0])
POINTS = torch.cos(torch.arange(12.0)).view(4, 3)
WITHOUT = {
    "differentiate": lambda x: differentiate(x, 0.1, start=rest).jerk,
    "integrate": lambda x: integrate(x, 0.1, start=State(position=0.0, velocity=0.0)).position,
    # Of which plain torch has a part: a lost gradient would be a wrong number, and no error.
    "a part": lambda x: differentiate(x, 0.1).jerk + x,
    "limits": lambda x: minimum_jerk(x[:, :4], TIMES, limits=Limits(velocity=9.0), samples=9).jerk,
    "times": lambda x: minimum_jerk(POINTS, TIMES * x.square().sum(), samples=9).jerk,
}
WITH = {
    "reference": lambda x: differentiate(x, 0.1, backend="reference").jerk,
    "minimum_jerk": lambda x: minimum_jerk(x[:, :4], TIMES, samples=9).jerk,
    "quintic": lambda x: quintic(x[:, :4], TIMES).sample(TIMES).velocity,
    "bspline": lambda x: bspline(x, 2.0).sample(TIMES).velocity,
    "preconditioner": Preconditioner(7, 0.5, dtype=torch.float32).positions,
}


def samples():
    return torch.cos(torch.arange(42.0)).view(2, 7, 3).requires_grad_()


def exported(motion, x, *, strict):
    class Module(torch.nn.Module):
        def forward(self, x):
            return motion(x)

    return torch.export.export(Module(), (x,), strict=strict).module()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", WITHOUT)
def test_what_a_kernel_computes_has_none(name, strict):
    x = samples()
    found = exported(WITHOUT[name], x, strict=strict)(x)
    torch.testing.assert_close(found, WITHOUT[name](x))
    with pytest.raises(UnsupportedError, match=r"operator pullback\w*::\w+ has no derivative"):
        found.sum().backward()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", WITH)
def test_plain_torch_keeps_it(name, strict):
    x, motion = samples(), WITH[name]
    found = [each(x).square().sum() for each in (exported(motion, x, strict=strict), motion)]
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in found))
