"""`needs-input-grad` and `undefined`: backward when not every gradient or cotangent is there."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._report import Finding

__all__ = ["needs_input_grad", "undefined"]


class _Counter(TorchDispatchMode):
    """Counts the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def needs_input_grad(probe: Probe) -> Finding:
    """Ask for one gradient at a time: it must not change, and should cost less than all."""
    points = probe.inputs.points()
    if len(points) < 2:
        return probe.skipped("Only one input is differentiated.")
    cotangents = probe.cotangents([y.detach() for y in probe.evaluate(probe.leaves())])
    joint, everything = _count(probe, points, cotangents, tuple(range(len(points))))
    wasted = True
    for k in range(len(points)):
        got, operations = _count(probe, points, cotangents, (k,))
        wasted = wasted and operations >= everything
        if probe.differ([got[k]], [joint[k]], looser=1e3) is not None:
            return probe.broken(
                "A gradient changes when the other inputs need none.",
                expected=joint[k], got=got[k], place=probe.path(k),
                hint="Look at ctx.needs_input_grad[k] by the position of the argument of forward.",
                repro=[
                    "w = [torch.ones_like(y) for y in outs()]",
                    "print('all  ', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
                    f"for j, x in enumerate(xs): x.requires_grad_(j == {k})",
                    f"print('alone', torch.autograd.grad(outs(), xs[{k}], w, allow_unused=True))",
                ],
            )  # fmt: skip
    if wasted and everything > len(points):
        return probe.lacking(
            f"Each gradient alone costs all {everything} operations of backward.",
            "Skip what ctx.needs_input_grad does not ask for.",
        )
    return probe.holds("Each gradient alone is the same, and costs no more than it must.")


def _count(
    probe: Probe, points: Tensors, cotangents: Tensors, wanted: tuple[int, ...]
) -> tuple[Tensors, int]:
    """Gradients of some inputs, and how many operations backward took."""
    leaves = [x.clone().requires_grad_(k in wanted) for k, x in enumerate(points)]
    outputs = probe.evaluate(leaves)
    with _Counter() as counter:
        gradients = probe.pull(leaves, cotangents, outputs)
    return [g.detach() for g in gradients], counter.count


class _Nothing(torch.autograd.Function):
    """The identity with an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return args[0].clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return None


def undefined(probe: Probe) -> Finding:
    """Leave out cotangents: products by output must sum to the joint one, and none gives zero."""
    points = probe.inputs.points()
    outputs = [y.detach() for y in probe.evaluate(probe.leaves())]
    cotangents = probe.cotangents(outputs)
    joint = probe.backward(points, cotangents)
    if len(outputs) > 1 and probe.intent != "nonlinear":
        total = [torch.zeros_like(g) for g in joint]
        for k in range(len(outputs)):
            leaves = probe.leaves()
            chosen = [probe.evaluate(leaves)[k]]
            try:
                alone = probe.pull(leaves, [cotangents[k]], chosen)
            except Exception as error:  # judged by its message
                return _fails(probe, error, f"only output {k} is used")
            total = [a + b.detach() for a, b in zip(total, alone, strict=True)]
        settled = all(g.isfinite().all() for g in joint)
        place = probe.differ(total, joint, looser=1e3) if settled else None
        if place is not None:
            return _broken(probe, joint[place], total[place], place)
    return _none_at_all(probe, joint) or probe.holds(
        "Gradients by one output at a time sum to the joint one; no cotangent gives no gradient."
    )


def _none_at_all(probe: Probe, joint: Tensors) -> Finding | None:
    leaves = probe.leaves()
    found = [_Nothing.apply(y) for y in probe.evaluate(leaves)]
    try:
        gradients = probe.pull(leaves, [torch.ones_like(y) for y in found], found)
    except Exception as error:  # judged by its message
        return _fails(probe, error, "every cotangent is undefined")
    for k, gradient in enumerate(gradients):
        # Zero times a slope that is infinite there is NaN in torch's own functions too.
        wrong = gradient.ne(0) & joint[k].isfinite()
        if bool(wrong.any()) and probe.intent != "nonlinear":
            return _broken(probe, torch.zeros_like(gradient), gradient, k)
    return None


def _fails(probe: Probe, error: Exception, when: str) -> Finding:
    return probe.failed(
        error,
        f"Backward fails when {when}",
        "After ctx.set_materialize_grads(False) a cotangent may be None: test for it.",
    )


def _broken(probe: Probe, expected: object, got: object, place: int) -> Finding:
    return probe.broken(
        "Gradients by one output at a time do not sum to the joint gradient.",
        expected=expected,
        got=got,
        place=probe.path(place),
        hint="Treat a cotangent that is None as zero, and add the parts of all outputs.",
        repro=[
            "n = len(outs()); w = [torch.ones_like(y) for y in outs()]",
            "print('joint', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            "for k in range(n):",
            "    print('output', k, 'alone', torch.autograd.grad(outs()[k], xs, w[k], "
            "allow_unused=True))",
        ],
    )
