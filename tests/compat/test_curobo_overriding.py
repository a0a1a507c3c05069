"""cuRobo's Functions, inherited from, with a forward of one's own in place of theirs."""

import pytest
import torch

from pullback.compat.curobo import CliqueTensorStepIdxKernel, CliqueTensorStepKernel
from pullback.errors import DefinitionError


class Passed(CliqueTensorStepKernel):
    @classmethod
    def forward(cls, ctx, *args):
        return super().forward(ctx, *args)


class Renamed(CliqueTensorStepKernel):
    @staticmethod
    def forward(ctx, u, p, v, a, to_p, to_v, to_a, to_j, dt, gradient):
        return CliqueTensorStepKernel.forward(ctx, u, p, v, a, to_p, to_v, to_a, to_j, dt, gradient)


class Again(Passed):
    """Nothing of its own."""


class Indexed(CliqueTensorStepIdxKernel):
    @classmethod
    def forward(cls, ctx, *args):
        return super().forward(ctx, *args)


@pytest.mark.parametrize("kernel", [Passed, Renamed, Again, Indexed])
def test_buffers_are_filled_and_gradients_reach_all(kernel):
    base = CliqueTensorStepIdxKernel if kernel is Indexed else CliqueTensorStepKernel
    index = [torch.tensor([1, 0])] if kernel is Indexed else []
    start, rate = torch.randn(2, 1), torch.tensor([2.0], requires_grad=True)
    act = torch.randn(2, 4, 1, requires_grad=True)
    found = []
    for function in (base, kernel):
        out = [torch.zeros(2, 4, 1) for _ in range(4)]
        values = function.apply(act, start, start, start, *index, *out, rate, None)
        assert all(map(torch.equal, values, out))
        found.append((*values, *torch.autograd.grad(values[3].square().sum(), (act, rate))))
    torch.testing.assert_close(found[1], found[0])


def test_what_a_class_itself_declares_must_be_there():
    class Wrong(CliqueTensorStepKernel):
        mutates = ("out_nothing",)

    with pytest.raises(DefinitionError, match="does not have"):
        Wrong.apply(
            torch.zeros(1, 4, 1), *[torch.zeros(1, 1)] * 3, *[None] * 4, torch.ones(1), None
        )
