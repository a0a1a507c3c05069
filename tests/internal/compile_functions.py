"""Compile Functions in each way that they are written down, bare and then covered by the layer.

Run by test_apply.py, which compares what is printed before and after the line between.
"""

import importlib.util
import warnings
from pathlib import Path

import torch
import torch._dynamo
from torch._dynamo.utils import counters

spec = importlib.util.spec_from_file_location("functions", Path(__file__).with_name("functions.py"))
functions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(functions)
Scale, Shifted, Square, early = (
    functions.Scale,
    functions.Shifted,
    functions.Square,
    functions.early,
)

warnings.simplefilter("ignore")


SEPARATOR = "covered:"


def broken(x):
    y = Square.apply(x)
    torch._dynamo.graph_break()
    return Scale.apply(early(y), 3.0)


CASES = {
    "class": lambda x: Square.apply(x) + 0,
    "own apply": lambda x: Shifted.apply(x) + 0,
    "early": lambda x: early(x) + 0,
    "early itself": early,
    "graph break": broken,
}
if torch.__version__ >= "2.13":  # before, `apply` takes no keywords
    CASES["keyword"] = lambda x: Scale.apply(x, factor=3.0)


def look() -> None:
    """Print what comes of each, and what Dynamo counts."""
    late = Square.apply
    cases = CASES | {"late": lambda x: late(x) + 0, "apply itself": Square.apply}
    for name, function in cases.items():
        x = torch.arange(1.0, 4.0, requires_grad=True)
        torch._dynamo.reset()
        try:
            out = torch.compile(function, backend="eager", fullgraph=True)(x)
            (gradient,) = torch.autograd.grad(out.sum(), x)
            expected = function(x)
            right = torch.equal(out, expected)
            right &= torch.equal(gradient, *torch.autograd.grad(expected.sum(), x))
            print(f"{name}: {'equal' if right else 'different'}")
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(function, backend="aot_eager")
        for size in (3, 4, 5):
            compiled(torch.ones(size, requires_grad=True)).sum().backward()
        print("  ", dict(counters["frames"]), dict(counters["stats"]), len(counters["graph_break"]))


look()
print(SEPARATOR)

from pullback.internal.torch import answering  # noqa: E402 - it is not there before

with answering(lambda call, cls, args, kwargs: call(cls, *args, **kwargs)):
    pass
look()
