"""`python -m benchmarks.kernels_in_use.second STEM [NAME...]`: second derivatives, by torch alone.

What somebody who looks at a `double` verdict wants to know, and nothing of this project is asked
for it: the directional derivative of each gradient, once by autograd (`create_graph=True`) and once
by central differences of the gradient itself, with two steps. They differ where the one is further
from the other than three times the distance of the two steps, and than a thousandth. A gradient
without history counts as zero: added to a loss, it is a constant.
"""

import argparse
import importlib
from collections.abc import Callable, Sequence

import torch

from benchmarks.kernels_in_use.__main__ import read
from benchmarks.wild._case import Published

__all__ = ["compare"]

Tensors = list[torch.Tensor]


class Gradient:
    """The gradients of one case, contracted with directions, as a function of its tensors."""

    def __init__(self, case: Published, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        self.call = case.call or case.load().apply
        arguments = self.arguments()
        self.places = [
            place
            for place, item in enumerate(arguments)
            if isinstance(item, torch.Tensor) and item.requires_grad
        ]
        self.inputs = [arguments[place].detach().clone() for place in self.places]
        chance = torch.Generator().manual_seed(1)
        outputs = self.outputs([item.clone().requires_grad_() for item in self.inputs])
        like = [(item.shape, item.dtype) for item in outputs]
        self.cotangents = [torch.randn(s, generator=chance, dtype=d) for s, d in like]
        self.directions = [torch.randn(it.shape, generator=chance) for it in self.inputs]

    def arguments(self) -> list[object]:
        """Those of the case, in the dtype that is asked for."""
        given = self.case.inputs(torch.Generator().manual_seed(0))
        return [
            it.to(self.dtype) if type(it) is torch.Tensor and it.is_floating_point() else it
            for it in given
        ]

    def outputs(self, inputs: Tensors) -> Tensors:
        """What the Function gives for copies of these inputs, where it has history."""
        arguments = self.arguments()
        for place, item in zip(self.places, inputs, strict=True):
            arguments[place] = item * 1.0
        given = self.call(*arguments)
        given = given if isinstance(given, list | tuple) else [given]
        return [it for it in given if isinstance(it, torch.Tensor) and it.requires_grad]

    def __call__(self, tensors: Tensors, graph: bool) -> torch.Tensor:
        inputs, cotangents = tensors[: len(self.inputs)], tensors[len(self.inputs) :]
        outputs, weights = self.outputs(inputs), [item * 1.0 for item in cotangents]
        found = torch.autograd.grad(outputs, inputs, weights, create_graph=graph, allow_unused=True)
        pairs = zip(found, self.directions, strict=True)
        return sum((a.double() * b).sum() for a, b in pairs if a is not None)


def quotient(function: Callable[[Tensors, bool], torch.Tensor], at: Tensors, moved: int,
             direction: torch.Tensor, step: float) -> float:  # fmt: skip
    """The central difference of a function of tensors along a direction of one of them."""
    ends = []
    for signed in (step, -step):
        tensors = [item.clone() for item in at]
        tensors[moved] += signed * direction
        ends.append(function([item.requires_grad_() for item in tensors], False).item())
    return (ends[0] - ends[1]) / (2 * step)


def compare(case: Published, fine: bool = False) -> list[tuple[str, float, float]]:
    """Of each tensor where the two differ: its name, and the two numbers, autograd's first."""
    function = Gradient(case, torch.float64 if fine else torch.float32)
    steps = (2e-7, 1e-7) if fine else (2e-2, 1e-2)
    at = [*function.inputs, *function.cotangents]
    names = [f"args[{place}]" for place in function.places]
    names += [f"the cotangent of output {k}" for k in range(len(function.cotangents))]
    leaves = [item.clone().requires_grad_() for item in at]
    total = function(leaves, True)
    given: Sequence[torch.Tensor | None] = [None] * len(leaves)
    if total.requires_grad:
        given = torch.autograd.grad(total, leaves, allow_unused=True)
    found = []
    for place, item in enumerate(at):
        direction = torch.randn(item.shape, generator=torch.Generator().manual_seed(2))
        coarse, fine = (quotient(function, at, place, direction, step) for step in steps)
        mine = 0.0 if given[place] is None else (given[place].double() * direction).sum().item()
        if abs(mine - fine) > 3 * abs(coarse - fine) + 1e-3 * (1 + abs(fine)):
            found.append((names[place], mine, fine))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stem")
    parser.add_argument("names", nargs="*", help="ends of names; those that were called broken")
    parser.add_argument("--fine", action="store_true", help="for what rounds: short steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = importlib.import_module(f"benchmarks.kernels_in_use.cases_{options.stem}")
    accused = {row["function"] for row in read() if row["clause"] == "double"}
    for case in cases.CASES:
        named = case.name.endswith(tuple(options.names))
        if not (named if options.names else case.name in accused):
            continue
        try:
            found = compare(case, options.fine)
        except Exception as error:  # of a kernel of others: said, and the next one is asked
            print(case.name, f"| {type(error).__name__}: {error}"[:300], flush=True)
            continue
        said = [f"{name} {mine:.3f}, not {true:.3f}" for name, mine, true in found]
        print(case.name, "|", "; ".join(said) or "agrees", flush=True)


if __name__ == "__main__":
    main()
