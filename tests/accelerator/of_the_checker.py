"""Programs that check and verify: beside an accelerator that nobody uses, and on it."""

__all__ = ["BESIDE", "BY_DEFAULT", "INDICES", "ISOLATED", "ON_IT"]

SUBJECTS = """
import os
import warnings
import torch
from tests.fuzzing import spread
from tests.specimens.wrong.calculus import CubeNested, MissingFactor

import pullback
from pullback.conformance import can_copy

warnings.simplefilter("ignore")


def plain(x, w):
    return torch.softmax(x @ w, -1)


def kernel(x, w):
    y = x @ w
    e = (y - y.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def shifted(x, w):
    return kernel(x, w) + 1e-3


def verdicts(report):
    return {f.clause: (f.verdict.name, f.detail) for f in report.findings}


# All but what takes seconds, and what torch's own rule of such a jvp answers wrongly.
EVERY = {c.id for c in pullback.conformance.CLAUSES} - {"compile", "forward-over-forward"}
"""

BESIDE = (
    SUBJECTS
    + """
inputs = torch.randn(4, 8), torch.randn(8, 5)
assert can_copy()
report = pullback.verify(kernel, plain, inputs)
assert report.ok and report.environment["isolated"] == "yes", verdicts(report)
assert can_copy()  # nothing has run a backward here yet

torch.ones(1, requires_grad=True).backward()
assert not can_copy()
report = pullback.verify(kernel, plain, inputs)
assert report.ok and report.environment["isolated"] == "no", verdicts(report)
assert not pullback.verify(shifted, plain, inputs).ok

report = pullback.check(CubeNested, torch.randn(3, 4), clauses=sorted(EVERY))
found = {clause: said for clause, said in verdicts(report).items() if said[0] != "HOLDS"}
assert {said[0] for said in found.values()} == {"SKIPPED"}, found
assert not found.keys() & {"fake", "first-call", "index-width", "memory"}, found
assert not pullback.check(MissingFactor, torch.randn(3, 4), clauses="derivative").ok
assert not torch.second.is_initialized(), "what looks after tensors of the CPU uses the device"
"""
)

ON_IT = (
    SUBJECTS
    + """
inputs = torch.randn(4, 8, device="second"), torch.randn(8, 5, device="second")
report = pullback.verify(kernel, plain, inputs)
assert report.ok and len(report.findings) == len(pullback.verification.PROMISES), verdicts(report)
report = pullback.verify(shifted, plain, inputs)
assert verdicts(report)["outputs"][0] == "BROKEN", verdicts(report)

x = torch.randn(3, 4, device="second")
report = pullback.verify(torch.ops.second.double_later, lambda x: 2 * x, (x,))
found = verdicts(report)
assert found["outputs"][0] == "HOLDS", found  # who compares reads them, and waits
assert found["finished"][0] == "BROKEN", found

report = pullback.check(CubeNested, x, clauses=sorted(EVERY))
found = {clause: said for clause, said in verdicts(report).items() if said[0] != "HOLDS"}
assert {said[0] for said in found.values()} == {"SKIPPED"}, found
assert not pullback.check(MissingFactor, x, clauses="derivative").ok
assert {"fake", "first-call", "memory"}.isdisjoint(found), found
assert report.environment["device"] == "second"
"""
)

BY_DEFAULT = (
    SUBJECTS
    + """
torch.set_default_device("second")
clauses = sorted(EVERY)
for number, device in enumerate(("cpu", "second")):  # half of the clauses each
    inputs = torch.randn(4, 8, device=device), torch.randn(8, 5, device=device)
    report = pullback.verify(kernel, plain, inputs)
    assert report.ok, verdicts(report)
    x = torch.randn(3, 4, device=device)
    half = spread(clauses[number:] + clauses[:number], 2)
    report = pullback.check(CubeNested, x, clauses=half)
    found = {clause: said for clause, said in verdicts(report).items() if said[0] != "HOLDS"}
    assert {said[0] for said in found.values()} == {"SKIPPED"}, found
    assert {"derivative", "batch", "rank", "sizes", "values"}.isdisjoint(found), found
"""
)

INDICES = (
    SUBJECTS
    + """
from tests.accelerator import functions
from tests.specimens.right import domains, edges, manners, sizes, values
from tests.specimens.wrong.calls import NearestCode

from pullback.errors import UnsupportedError


def there(specimen):
    return [
        x.detach().to("second").requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
        for x in specimen.inputs()
    ]


asked = ["derivative", "sizes", "rank", "values", "batch", "first-call", "layout", "vmap"]
every = [s for part in (domains, edges, manners, sizes, values) for s in part.SPECIMENS]
indexed = [
    specimen for specimen in every
    if any(torch.is_tensor(x) and not x.is_floating_point() for x in specimen.inputs())
]
assert len(indexed) > 8
for specimen in spread(indexed, 2):
    report = pullback.check(specimen.function, *there(specimen), clauses=asked)
    assert not torch.second.is_lost(), report.to_text(verbose=True)
    assert "device-side" not in report.to_text(verbose=True), report

x = torch.randn(5, 3, device="second", requires_grad=True)
codes = torch.randn(4, 3, device="second", requires_grad=True)
assert not pullback.check(NearestCode, x, codes, clauses="non-differentiable").ok
assert not torch.second.is_lost()
index = torch.tensor([0, 4, 2], device="second")
report = pullback.check(functions.OnItAlone, x, index, clauses=asked)
assert report.ok, report
assert "Other indices are not tried" in report.to_text(verbose=True)
assert not torch.second.is_lost()

try:
    pullback.check(functions.LosesIt, x, clauses=["layout", "linear"])
except UnsupportedError as error:
    assert "clause layout ended the use" in str(error), error
else:
    raise AssertionError("a lost device is told by nobody")
"""
)


ISOLATED = (
    SUBJECTS
    + """
from tests.accelerator import functions
from tests.specimens.clauses.first_call import MaskOfFirst, ScaleByShape

from pullback.recording.codec import EXPRESSION, StrictLoader, decode_call

x = torch.randn(5, 3, device="second", requires_grad=True)
report = pullback.check(functions.LosesIt, x, clauses=["layout", "linear"], isolate=True)
found = verdicts(report)
assert found["layout"][0] == "CRASHES" and "device-side" in found["layout"][1], found
assert found["linear"][0] == "HOLDS", found
node, stored = ("tensor", 1, True, "second", False), [torch.ones(5, 3), x.detach().cpu()]
((found,), _) = decode_call([node], [], stored, StrictLoader(), "recorded")  # on the CPU
assert found.device == x.device and torch.equal(found, x)
assert getattr(found, EXPRESSION) == "recorded[1]"
for function in (MaskOfFirst, ScaleByShape):
    report = pullback.check(function, x, clauses="first-call", isolate=True)
    assert report["first-call"].verdict.is_bad, report
"""
)
