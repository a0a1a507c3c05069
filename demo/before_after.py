"""Show entmax's sparse softmax as published, and after `pullback.complete`.

The score weighs four probabilities and squares the sum, as a loss would; the last row holds the
finite differences that its second derivative is compared with.
"""

from collections.abc import Callable
from typing import Any

import torch
from entmax.activations import Entmax15Function
from rich.console import Console
from rich.table import Table

import pullback

Completed = pullback.complete(Entmax15Function)
POINT = torch.tensor([0.3, -0.1, 0.2, 0.05], dtype=torch.float64)
DIRECTION = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def score(function: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """The squared, weighted sum of the probabilities."""
    return lambda point: (function.apply(point, -1) * WEIGHTS).sum().square()


def backward(function: Any) -> torch.Tensor:
    """The gradient by ``backward()``."""
    point = POINT.clone().requires_grad_()
    score(function)(point).backward()
    return point.grad


def second(function: Any) -> torch.Tensor:
    """The first row of the Hessian by two backward passes."""
    point = POINT.clone().requires_grad_()
    (first,) = torch.autograd.grad(score(function)(point), point, create_graph=True)
    return torch.autograd.grad(first[0], point)[0]


def compiled(function: Any) -> torch.Tensor:
    """The gradient of the compiled score."""
    point = POINT.clone().requires_grad_()
    torch.compile(score(function), fullgraph=True, backend="aot_eager")(point).backward()
    return point.grad


TRANSFORMS: dict[str, Callable[[Any], torch.Tensor]] = {
    "backward": backward,
    "compile, fullgraph": compiled,
    "torch.func.grad": lambda f: torch.func.grad(score(f))(POINT),
    "torch.func.jvp": lambda f: torch.func.jvp(score(f), (POINT,), (DIRECTION,))[1],
    "torch.func.vmap": lambda f: torch.func.vmap(score(f))(torch.stack([POINT, 2 * POINT])),
    "backward twice": second,
    "torch.func.hessian": lambda f: torch.func.hessian(score(f))(POINT)[0],
}


def attempt(transform: Callable[[Any], torch.Tensor], function: Any) -> str:
    """The value as text, or the error."""
    try:
        value = transform(function).detach()
    except Exception as error:  # what is shown is the error itself
        return f"[yellow]{type(error).__name__}: {' '.join(str(error).split())[:20]}...[/]"
    return " ".join(f"{item: .4f}" for item in value.reshape(-1).tolist())


def finite_differences() -> str:
    """The first row of the Hessian by central differences of the published gradient."""
    step = 1e-5
    rows = []
    for sign in (1, -1):
        point = (POINT + sign * step * DIRECTION).requires_grad_()
        score(Entmax15Function)(point).backward()
        rows.append(point.grad)
    return " ".join(f"{item: .4f}" for item in ((rows[0] - rows[1]) / (2 * step)).tolist())


def main() -> None:
    """Print the table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("", "Entmax15Function as published", "after pullback.complete"):
        table.add_column(column, no_wrap=True)
    for name, transform in TRANSFORMS.items():
        before, after = attempt(transform, Entmax15Function), attempt(transform, Completed)
        table.add_row(name, before, after)
    table.add_row("finite differences", "", finite_differences())
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    console.print(table)


if __name__ == "__main__":
    main()
