"""What is hidden: a smooth function of an input, of two, of the output or of the cotangent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["MATHS", "Maths", "plain_source"]


@dataclass(frozen=True)
class Maths:
    """One Function as expressions: of its inputs, of ``y`` (its value), ``h`` and ``g``.

    Arguments:
        name: of the Function.
        value: the expression of the output.
        hidden: the expression of the value that is hidden.
        gradients: one expression for each input, with ``h`` where the hidden value enters.
        formula: the same function for autograd; ``None`` where backward is not linear, and a
            Function that saves its inputs alone says what is right.
        saved: names that backward uses beside what is hidden.
        late: the hidden value is computed in backward, of the cotangent.
        kinks: values from which half of the arguments are drawn: where its slope jumps, 0, ties.
        ordinary: autograd sees the value; else a refusal is what most ways of keeping it deserve.
    """

    name: str
    arguments: tuple[str, ...]
    value: str
    hidden: str
    gradients: tuple[str, ...]
    formula: Callable[..., Any] | None
    saved: tuple[str, ...] = ()
    intent: Literal["exact", "surrogate", "nonlinear"] = "exact"
    late: bool = False
    ordinary: bool = True
    kinks: tuple[float, ...] = ()


def _rounded(x: torch.Tensor) -> torch.Tensor:
    smooth = torch.special.erf(x)  # its derivative is 1.1283791670955126 * exp(-x * x)
    return smooth + (x.round() - smooth).detach()


def _root(x: torch.Tensor) -> torch.Tensor:
    cube = x / 2 + (x * x / 4 + 1 / 27).sqrt()  # Cardano
    return cube ** (1 / 3) - 1 / (3 * cube ** (1 / 3))


X, XZ = ("x",), ("x", "z")

MATHS = (
    Maths("Cube", X, "x ** 3", "3 * x * x", ("h * g",), lambda x: x**3),
    Maths("Sine", X, "x.sin()", "x.cos()", ("h * g",), torch.sin),
    Maths("Half", X, "x ** 3", "x * x", ("(h + 2 * x * x) * g",), lambda x: x**3, ("x",)),
    Maths("Exponential", X, "x.exp()", "y", ("h * g",), torch.exp),
    Maths("Tanh", X, "x.tanh()", "y", ("(1 - h * h) * g",), torch.tanh),
    Maths("Reciprocal", X, "1 / x", "y * y", ("-h * g",), lambda x: 1 / x),
    Maths(
        "Total",
        X,
        "x * x.sum()",
        "x.sum()",
        ("h * g + (g * x).sum()",),
        lambda x: x * x.sum(),
        ("x",),
    ),
    Maths(
        "Product",
        XZ,
        "(x * z).sin()",
        "(x * z).cos()",
        ("h * z * g", "h * x * g"),
        lambda x, z: (x * z).sin(),
        XZ,
    ),
    Maths(
        "Quadratic",
        XZ,
        "x * x * z",
        "x * z",
        ("2 * h * g", "x * x * g"),
        lambda x, z: x * x * z,
        X,
    ),
    Maths(
        "Rounded",
        X,
        "x.round()",
        "1.1283791670955126 * (-x * x).exp()",
        ("h * g",),
        _rounded,
        intent="surrogate",
    ),
    Maths(
        "SquaredRelu",
        X,
        "torch.relu(x) ** 2",
        "2 * torch.relu(x)",
        ("h * g",),
        lambda x: torch.relu(x) ** 2,
        kinks=(0.0, 0.0, 1.0, -1.0),
    ),
    Maths(
        "Masked",
        X,
        "torch.relu(x) * x",
        "(x > 0).to(x.dtype)",
        ("2 * h * x * g",),
        lambda x: torch.where(x > 0, x * x, 0 * x),
        X,
        kinks=(0.0, 0.0, 1.0, -1.0),
    ),
    Maths(
        "Huber",
        X,
        "torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5)",
        "torch.where(x.abs() <= 1, x, x.sign())",  # the side of a kink that `value` takes
        ("h * g",),
        lambda x: torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5),
        kinks=(0.0, 1.0, -1.0, 2.0),
    ),
    Maths(
        "SquaredLeakyRelu",
        X,
        "torch.where(x > 0, x, 0.1 * x) ** 2",
        "torch.where(x > 0, x, 0.01 * x)",
        ("2 * h * g",),
        lambda x: torch.where(x > 0, x, 0.1 * x) ** 2,
        kinks=(0.0, 0.0, 1.0, -1.0),
    ),
    # What the operations of forward say of these is wrong: an iteration, and a Function within.
    Maths("Root", X, "bisected(x)", "y", ("g / (1 + 3 * h * h)",), _root, ordinary=False),
    Maths(
        "Within", X, "Crooked.apply(x)", "y", ("3 * h / x * g",), lambda x: x**3, X, ordinary=False
    ),
    Maths("Bounded", X, "x * x", "g.tanh()", ("2 * x * h",), None, X, "nonlinear", late=True),
    Maths(
        "Scaled",
        X,
        "x * x",
        "(g * g).sum() + 1",
        ("2 * x * g / h",),
        None,
        X,
        "nonlinear",
        late=True,
    ),
    Maths("Weighed", X, "x * x", "2 * x", ("h * g * g",), None, (), "nonlinear"),
)


def plain_source(maths: Maths, stopped: bool = False) -> str:
    """The Function that hides nothing: it saves its inputs and computes all else in backward.

    Arguments:
        stopped: the hidden value has a stop-gradient, as its author wrote it in backward.
    """
    names = ", ".join(maths.arguments)
    hidden = f"({maths.hidden}).detach()" if stopped else maths.hidden
    return f"""\
class Plain{maths.name}(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward({names}):
        return {maths.value}

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        {names}, = ctx.saved_tensors
        y = {maths.value}
        h = {hidden}
        return {", ".join(maths.gradients)}
"""
