"""What newer versions of torch offer the author of a Function."""

import pytest
import torch
from tests.versions import needs_torch

import pullback


def rules():
    class Boxed:
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx, cotangents):
            x, y = ctx.saved_tensors
            product, total = cotangents
            cotangents.clear()  # the point of it: to free each as soon as it is used
            return product * y + total, product * x + total

    return dict(vars(Boxed))


@needs_torch("2.13", "cotangents in a list (boxed_grads_call)")
@pytest.mark.parametrize("base", ["written", "completed"])
def test_backward_gets_its_cotangents_in_one_list(base):
    body = {name: rule for name, rule in rules().items() if not name.startswith("__")}
    if base == "written":
        function = type("Boxed", (pullback.Function,), body)
    else:
        function = pullback.complete(type("Boxed", (torch.autograd.Function,), body))
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 3.0))
    product, total = function.apply(x, y)
    assert torch.autograd.grad(product + 2 * total, (x, y)) == (5.0, 4.0)
    both = torch.func.grad(lambda x, y: sum(function.apply(x, y)), argnums=(0, 1))
    assert both(x.detach(), y.detach()) == (4.0, 3.0)
    second = torch.func.grad(lambda x: torch.func.grad(lambda y: function.apply(x, y)[0])(x))
    assert second(x.detach()) == 1.0
