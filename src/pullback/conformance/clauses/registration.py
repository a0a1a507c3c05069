"""`registration`: an operator is registered as it behaves: it passes `torch.library.opcheck`."""

from collections.abc import Callable
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.evidence._traced import survived
from pullback.internal.torch import has_own_fake, lacks_gradient

__all__ = ["registration"]

# What is tested, and what tells that it was never registered, which is no fault of what was.
_TESTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "test_schema": ("schema", lambda op: False),
    "test_autograd_registration": ("autograd", lacks_gradient),
    "test_faketensor": ("fake tensors", lambda op: not has_own_fake(op)),
    "test_aot_dispatch_dynamic": (
        "AOT dispatch with shapes that change",
        lambda op: not has_own_fake(op),
    ),
}


@clause(
    why="torch trusts what an operator says of itself. An argument that it changes without saying "
    "so is read before or after as the compiler likes, and a fake kernel with another shape makes "
    "compiled code read foreign memory.",
    breach="in torch's own four tests: of the schema, of the registration for autograd, of fake "
    "tensors, and of AOT dispatch with shapes that change. They do not look at numbers: whether "
    "the gradient is right is for the other clauses.",
    mend="Correct mutates_args, register_fake or register_autograd; the text says which.",
    gradient=False,
)
def registration(probe: Probe) -> Finding:
    """Run the four tests of `torch.library.opcheck`."""
    if probe.subject.operator is None:
        return probe.skipped("It is no operator of torch.library.")
    return survived(probe, _look)


def _look(probe: Probe) -> Finding:
    op: Any = probe.subject.operator
    failed: dict[str, str] = {}
    tested: list[str] = []
    absent: list[bool] = []
    for test, (name, lacks) in _TESTS.items():
        args, kwargs = probe.inputs.build(probe.leaves())
        answer = torch.library.opcheck(op, args, kwargs, test_utils=test, raise_exception=False)[
            test
        ]
        if isinstance(answer, NotImplementedError):  # torch's own, of this device
            continue
        tested.append(name)
        if answer != "SUCCESS":
            text = " ".join(str(answer).split())  # what is wrong, without torch's advice
            start = text.rfind("with error:")
            failed[name] = text[start + 11 if start >= 0 else 0 :].strip()[:300]
            absent.append(lacks(op))
    if not failed:
        return probe.holds(f"torch.library.opcheck: {', '.join(tested)}.")
    said = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    if all(absent):
        return probe.lacking(f"torch.library.opcheck: {said}")
    return probe.broken(
        f"torch.library.opcheck fails in {', '.join(failed)}.",
        expected="an operator that does what it is registered for", got=said,
        repro=[
            "op = getattr(F, 'default', F)",
            "print(torch.library.opcheck(op, args, kwargs, raise_exception=False))",
        ],
    )  # fmt: skip
