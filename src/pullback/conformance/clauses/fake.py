"""`fake`: fake tensors get the right shapes, dtypes and devices."""

from pullback.conformance._clause import Finding, Probe, Verdict, clause
from pullback.conformance.clauses._hints import TRACE
from pullback.conformance.evidence._screen import Run, died
from pullback.conformance.evidence._traced import Failed, form_of, trace
from pullback.conformance.process._forked import ProcessDied
from pullback.internal.torch import FakeTensorMode

__all__ = ["fake"]


@clause(
    why="torch.compile, torch.export and memory planners run the Function on tensors "
    "without data. Wrong shapes there become wrong code later.",
    breach="against a real run, in a copy of the process: published kernels have ended it here.",
    mend="`torch.library.custom_op` and `register_fake` for kernels.",
)
def fake(probe: Probe) -> Finding:
    """Run on fake tensors and compare shapes, dtypes and devices with a real run."""
    real = Run.of(probe)
    try:
        found = trace(probe)
    except ProcessDied as death:
        return died(probe, "A run on fake tensors ends the process.", death, hint=TRACE)
    forms = found.outputs if isinstance(found, Failed) else found
    for k, ((kind, form), other) in enumerate(zip(forms, real.every, strict=False)):
        place = probe.place(k, len(real.outputs))
        if kind != "FakeTensor":
            return _broken(probe, place, "a fake tensor", f"a {kind} with numbers")
        if form != form_of(other):
            return _broken(probe, place, form_of(other), form)
    if isinstance(found, Failed):
        said = f"Fake tensors are refused: {found.told}"
        refused = found.verdict is Verdict.LACKING
        return probe.lacking(said, TRACE) if refused else probe.crashes(said, TRACE)
    return probe.holds("Fake tensors get the shapes and dtypes of a real run.")


def _broken(probe: Probe, place: str, expected: str, got: str) -> Finding:
    return probe.broken(
        "A fake run gives another form than a real run.",
        expected=expected, got=got, place=place, hint=TRACE,
        repro=[
            f"from {FakeTensorMode.__module__} import FakeTensorMode",
            "print('real', [(y.shape, y.dtype) for y in outs()])",
            "with FakeTensorMode() as mode:",
            "    args = tree_map(lambda a: mode.from_tensor(a) "
            "if isinstance(a, torch.Tensor) else a, args)",
            "    print('fake', [(y.shape, y.dtype) for y in tree_leaves("
            "call(*args, **kwargs))])",
        ],
    )  # fmt: skip
