"""The repro of a finding is a short standalone script that shows the fault."""

import ast
import collections
import enum
import importlib
import io
import itertools
import json
import re
import threading
import tokenize
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.copies import run_python
from tests.fuzzing import spread
from tests.scripts import printed_by
from tests.specimens import clauses
from tests.specimens._specimen import normal
from tests.specimens.wrong import (
    calculus,
    calls,
    families,
    machines,
    memory,
    operators,
    sizes,
)
from tests.specimens.wrong import (
    compositions as pairs,
)
from torch.nn.utils.rnn import pack_sequence

from pullback import recording
from pullback.conformance import Verdict, check
from pullback.conformance.clauses import compositions
from pullback.conformance.evidence import _transforms
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.script import _repro
from pullback.conformance.script._literal import Literals
from pullback.recording.codec import Keywords

WRONG = [
    *clauses.WRONG,
    *calculus.SPECIMENS,
    *memory.SPECIMENS,
    *calls.SPECIMENS,
    *machines.SPECIMENS,
]
COMPILED = [specimen for specimen in WRONG if specimen.clause == "compile"]
OTHERS = [specimen for specimen in WRONG if specimen.clause != "compile"]
BESIDE = [s for part in (families, operators, pairs, sizes) for s in part.SPECIMENS]
ROOT = Path(__file__).parents[2]
# What counts its calls or draws unseeded, and what takes no leaf.
UNLIKE = ("checkpoint-ForwardCounts", "checkpoint-NumpyDropout", "mutation-DirtyTwice")
CHANGED = "Run by the checker"  # how a script begins that does not print the finding's numbers


def finding_of(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=specimen.clause
    )
    return report[specimen.clause]


def assert_reads_well(script):
    """Short, in 100 columns, one statement a line, imports first."""
    lines = script.splitlines()
    assert 0 < len(lines) <= 60
    assert max(map(len, lines)) <= 100
    tokens = tokenize.generate_tokens(io.StringIO(script).readline)
    assert ";" not in [token.string for token in tokens]
    # What lies in a folder that Python is told of is imported after that.
    nodes = [n for n in ast.parse(script).body if "sys.path.append(" not in ast.unparse(n)]
    kinds = [isinstance(node, (ast.Import, ast.ImportFrom)) for node in nodes]
    assert kinds == sorted(kinds, reverse=True)
    assert all(node.lineno != before.lineno for before, node in itertools.pairwise(nodes))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("specimen", OTHERS, ids=lambda specimen: specimen.id)
@pytest.mark.filterwarnings("ignore")
def test_a_repro_is_short_and_runs(specimen):
    finding = finding_of(specimen)
    if finding.verdict is not Verdict.BROKEN:
        pytest.skip(f"{finding.verdict.value}: the error itself shows it")
    if specimen.clause == "reference":
        pytest.skip("completed in place, under a name that is another's: see the next test")
    assert_reads_well(finding.repro)
    assert printed_by(finding.repro).strip()
    assert specimen.id in UNLIKE or CHANGED not in finding.repro, finding


KERNEL = """
import pullback
import torch


def plain(x):
    return 2 * x.exp()


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * y


Kernel = pullback.complete(Kernel, reference=plain)
"""


def test_a_completed_kernel_is_shown_beside_its_reference(tmp_path, monkeypatch):
    (tmp_path / "kernel_with_reference.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = importlib.import_module("kernel_with_reference").Kernel
    finding = check(kernel, torch.ones(2), clauses="reference")["reference"]
    assert finding.verdict == "broken"
    assert_reads_well(finding.repro)
    printed = printed_by(finding.repro)
    assert "2.718" in printed
    assert "5.436" in printed


# One process for all: it takes longer to import torch than to run them.
RUN_EACH = """
import contextlib, io, json, runpy, sys
printed = []
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(path, run_name="__main__")
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def run_alone(folder, scripts):
    """What scripts print in a process of their own."""
    paths = [folder / f"repro_{number}.py" for number in range(len(scripts))]
    for path, script in zip(paths, scripts, strict=True):
        path.write_text(script, encoding="utf-8")
    done = run_python("-c", RUN_EACH, *map(str, paths), folder=ROOT)
    assert done.returncode == 0, "\n\n".join([*scripts, done.stderr])
    return json.loads(done.stdout)


def numbers(line):
    return [float(text) for text in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", line)]


ALONE = [
    (calculus.MissingFactor, "derivative"),
    (calculus.SavedIntermediate, "double"),
    (memory.ScalesCotangent, "cotangent"),
    (calls.SavedOnTheClass, "state"),
]


def test_a_repro_shows_the_fault_in_a_process_of_its_own(tmp_path):
    chosen = [s for s in WRONG if (s.function, s.clause) in ALONE]
    assert len(chosen) == len(ALONE)
    # Dynamo wants a module, not a text.
    found = [(s, finding_of(s)) for s in [*chosen, *spread(COMPILED, 2)]]
    found = [(specimen, f) for specimen, f in found if f.verdict is Verdict.BROKEN]
    # What torch 2.14 compiles wrongly, later ones compile rightly.
    compiled = {"compile"} if torch.__version__ < "2.15" else set()
    assert compiled | {clause for _, clause in ALONE} == {s.clause for s, _ in found}
    for _, finding in found:
        assert_reads_well(finding.repro)
    printed = run_alone(tmp_path, [finding.repro for _, finding in found])
    for (specimen, _), text in zip(found, printed, strict=True):
        lines = text.strip().splitlines()
        assert lines, specimen.id
        if specimen.clause == "cotangent":
            before, after = (numbers(line)[:3] for line in lines[-2:])
            assert after == pytest.approx([2 * entry for entry in before])
        elif specimen.clause != "compile":
            first, second = (numbers(line)[0] for line in lines[:2])
            assert first != pytest.approx(second, rel=1e-3), specimen.id


def test_what_cannot_be_imported_has_no_repro():
    class Local(calculus.MissingFactor):
        pass

    report = check(Local, *calculus.SPECIMENS[0].inputs(), clauses="derivative")
    assert report["derivative"].verdict is Verdict.BROKEN
    assert report["derivative"].repro == ""


def test_what_was_typed_at_a_prompt_stays_as_it_is(monkeypatch):
    typed = ["def scaled(x, **kwargs):", "    return recall(x, **kwargs) + call(x, **kwargs)"]
    monkeypatch.setattr(_repro, "_definition", lambda subject: [*typed, "F = scaled"])
    inputs = Arguments.of((torch.ones(1),))
    script = _repro.write_repro(Subject.of(torch.sin), inputs, [0], 0, ["print(call(*args))"])
    assert "\n".join(typed) in script
    assert script.endswith("print(F(*args))\n")


class Mode(enum.Enum):
    TWICE = 2.0


class Pair(NamedTuple):
    factor: torch.Tensor
    power: int


class Named(torch.Tensor):
    pass


class Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, read, given):
        ctx.read, ctx.given = read, given
        ctx.save_for_backward(x)
        return x * x * read(given, x)

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * cotangent * ctx.saved_tensors[0] * ctx.read(ctx.given, cotangent), None, None


def local(value):
    return lambda x: value * x


GIVEN = [
    (torch.nn.Linear(3, 3), lambda given, x: given(torch.ones_like(x)).detach()),
    (torch.nn.Linear(3, 3).forward, lambda given, x: float(given(torch.ones(3)).sum())),
    (Mode.TWICE, lambda given, x: given.value),
    ({Mode.TWICE}, lambda given, x: len(given)),
    ({Mode.TWICE: 2.0}, lambda given, x: given[Mode.TWICE]),
    (Pair(torch.tensor([1.0, 2.0, 3.0]), 2), lambda given, x: given.factor**given.power),
    ({"a": [Pair(torch.ones(3), 3)]}, lambda given, x: given["a"][0].power),
    (np.array([1.0, 2.0, 3.0]), lambda given, x: torch.from_numpy(given)),
    (np.float32(1.5), lambda given, x: float(given)),
    (torch.ones(3).as_subclass(Named), lambda given, x: 2.0 * isinstance(given, Named)),
    (pack_sequence([torch.ones(3)]), lambda given, x: len(given.data)),
    (collections.OrderedDict(a=2.0), lambda given, x: given["a"] * len(given)),
    (local(2.0), lambda given, x: given(1.5)),
    (threading.Lock(), lambda given, x: 1.5),
]  # fmt: skip


@pytest.mark.usefixtures("no_edits")
@pytest.mark.parametrize(("given", "read"), GIVEN, ids=lambda value: type(value).__name__)
def test_what_has_no_form_as_source_is_taken_from_the_recorded_call(given, read, monkeypatch):
    call = (torch.tensor([0.5, 1.0, 2.0]).requires_grad_(), read, given)
    monkeypatch.setattr(recording, "load_call", lambda *where, **how: (Taken, call))
    keywords = Keywords({}, "load_call('calls.pt', 'there:Taken', 1, trust=True)")
    finding = check(Taken, *call, clauses="derivative", kwargs=keywords)["derivative"]
    assert finding.verdict is Verdict.BROKEN
    assert_reads_well(finding.repro)
    assert "recorded[1]" in finding.repro
    assert CHANGED not in finding.repro


@pytest.mark.usefixtures("no_edits")
def test_a_tensor_that_a_module_has_too_is_that_of_the_module(monkeypatch):
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, module, weight):
            ctx.module = module
            ctx.save_for_backward(x)
            return x @ module.weight.t()

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * cotangent @ ctx.module.weight, None, cotangent.t() @ ctx.saved_tensors[0]

    module = torch.nn.Linear(2, 2)
    call = (torch.ones(1, 2, requires_grad=True), module, module.weight)
    monkeypatch.setattr(recording, "rerun_call", lambda *where, **how: (Local, call))
    keywords = Keywords({}, "rerun_call(['train.py'], 'train.py:run.<locals>.Local')")
    finding = check(Local, *call, clauses="linear,derivative", kwargs=keywords)["derivative"]
    assert "recorded[1], recorded[2])" in finding.repro
    assert "where the program\n# seeds its draws" in finding.repro  # or objects are others
    assert CHANGED not in finding.repro


class TakesOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, options):
        ctx.save_for_backward(x)
        ctx.scale = options.pop("scale")
        return x * x * ctx.scale

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * cotangent * ctx.saved_tensors[0] * ctx.scale, None


@pytest.mark.usefixtures("no_edits")
def test_each_call_of_a_script_has_containers_of_its_own():
    call = (torch.tensor([0.5, 1.0]), {"scale": 2.0})
    finding = check(TakesOut, *call, clauses="derivative")["derivative"]
    assert finding.verdict is Verdict.BROKEN
    assert CHANGED not in finding.repro


def test_names_that_are_no_plain_data_cost_the_script_and_not_the_verdict():
    call = (torch.tensor([0.5, 1.0]), read_mode, {Mode.TWICE: 2.0})
    finding = check(Taken, *call, clauses="derivative")["derivative"]
    assert (finding.verdict, finding.repro) == (Verdict.BROKEN, "")


def read_mode(given, x):
    return given[Mode.TWICE]


class WritesIntoCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        scale = w.exp()
        ctx.save_for_backward(scale)
        return 2 * x + scale

    @staticmethod
    def backward(ctx, cotangent):
        (scale,) = ctx.saved_tensors
        of_w = 3 * cotangent * scale if ctx.needs_input_grad[0] else None
        own = cotangent * 2 if torch.is_grad_enabled() else cotangent.mul_(2)
        return own, of_w


@pytest.mark.parametrize("clause", ["derivative", "double", "needs-input-grad", "cotangent"])
def test_each_backward_of_a_script_has_cotangents_of_its_own(clause):
    inputs = (torch.randn(3, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    finding = check(WritesIntoCotangent, *inputs, clauses=clause)[clause]
    assert finding.verdict is Verdict.BROKEN
    assert CHANGED not in finding.repro
    lines = printed_by(finding.repro).splitlines()
    assert numbers(lines[0]) != pytest.approx(numbers(lines[-1]), rel=1e-3)


@pytest.mark.parametrize("clause", ["stale", "alias", "autocast", "hooks"])
def test_who_writes_into_a_cotangent_is_not_accused_of_more(clause):
    inputs = (torch.ones(3, dtype=torch.float64).requires_grad_() for _ in range(2))
    assert check(WritesIntoCotangent, *inputs, clauses=clause)[clause].verdict is Verdict.HOLDS


def test_a_tensor_of_one_number_is_written_as_such():
    assert Literals().of(torch.ones(9, 9)) == "torch.full((9, 9), 1.0, dtype=torch.float32)"
    signs = torch.zeros(70)
    signs[3] = -0.0
    for value in (signs, torch.full((70,), torch.inf), torch.arange(70)):
        assert Literals().of(value).startswith("unpack(")


def test_a_script_says_which_limit_was_passed():
    fits, passes = Literals(), Literals()
    assert all("rand" not in fits.of(torch.arange(float(n))) for n in (4000, 90, 6))
    assert not fits.finish("")
    texts = [passes.of(torch.arange(3840.0)) for _ in range(2)]
    assert ["rand" in text for text in texts] == [False, True]
    said = " ".join(passes.finish("").replace("#", "").split())
    assert "have 7,680 entries together, of which 4,096 at most" in said


class LosesOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x + w * torch.arange(w.numel()).view(w.shape)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None


def test_a_script_prints_the_entries_that_the_finding_shows():
    inputs = (torch.rand(8, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    finding = check(LosesOne, *inputs, clauses="derivative")["derivative"]
    assert finding.got == "None"
    assert CHANGED not in finding.repro
    shown = numbers(printed_by(finding.repro).splitlines()[0])
    assert shown == pytest.approx(numbers(finding.expected)[:6], rel=1e-5, abs=1e-9)


class TwiceTheWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return None, 2 * cotangent * x


def test_all_entries_are_known_that_a_finding_shows():
    """Of 150 draws this one has a larger entry among those that are shown beside the largest."""
    generator = torch.Generator().manual_seed(32)
    x = torch.randn(2000, dtype=torch.float64, generator=generator)
    weight = torch.ones(2000, dtype=torch.float64, requires_grad=True)
    finding = check(TwiceTheWeight, x, weight, clauses="derivative")["derivative"]
    assert "nan" not in finding.expected
    assert CHANGED not in finding.repro


def curved(z):
    return z * z.exp()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    "lines",
    [
        *(transform.shown() for transform in _transforms.ALONE.values()),
        *map(compositions._repro, _transforms.PAIRS.values()),
    ],
    ids=[*_transforms.ALONE, *_transforms.PAIRS],
)
def test_both_lines_agree_where_transforms_are_right(lines, dtype):
    inputs = Arguments.of((torch.randn(3, dtype=dtype).requires_grad_(),))
    given = {name: [torch.randn(3, dtype=dtype)] for name in "wvu"}
    script = _repro.write_repro(Subject.of(curved), inputs, [0], 0, lines, given=given)
    assert_reads_well(script)
    one, other = re.split("autograd|parts", printed_by(script))
    assert numbers(one) == pytest.approx(numbers(other), rel=1e-4, abs=1e-6)


class HalfTangent(torch.autograd.Function):
    """Its tangent is half of what it should be; in single precision its gradient is, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z):
        return z * z

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (z,) = ctx.saved_tensors
        return (1 if z.dtype is torch.complex64 else 2) * z.conj() * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        (z,) = ctx.saved_tensors
        return z * tangent


@pytest.mark.parametrize("clause", ["forward", "forward-over-forward", "compositions", "dtype"])
def test_the_script_of_a_complex_function_shows_its_fault(clause):
    finding = check(HalfTangent, made_complex(torch.randn(3).requires_grad_()), clauses=clause)[
        clause
    ]
    assert finding.verdict is Verdict.BROKEN
    assert "ended with" not in finding.repro
    assert_reads_well(finding.repro)
    one, other = (numbers(line) for line in printed_by(finding.repro).split("\n", 1))
    assert one[:1] != pytest.approx(other[:1], rel=1e-3)


def made_complex(value):
    """The same real numbers, with imaginary ones beside them."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    whole = torch.complex(value.detach().double(), torch.randn(value.shape, dtype=torch.float64))
    return whole.requires_grad_(value.requires_grad)


# Those of each clause that are wrong for complex numbers, too.
OF_COMPLEX = """
    LengthOfOne WidestSeen ByAddress MissingFactor WeightDecayInBackward SavedIntermediate
    JvpWithoutFactor CubeNested IntermediateInSetup InputOnContext OutputOnContext SavesData
    BackwardScalesSaved ScalesCotangent ReadsInputMemory OneBufferTwice MaskInClosure ForwardCounts
    NeedsOffByOne NoneDropsTheOther IgnoresOneOutput CountsItsCalls SavedOnTheClass BackwardCounts
    WeightsInDict VmapAssumesFirst FakeDtypeWrong changes_input FixedBuffer ForwardOverReverse
    OfTheDefault
"""


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "specimen",
    [s for s in [*OTHERS, *BESIDE] if re.findall(r"\w+", s.id)[-1] in OF_COMPLEX.split()],
    ids=lambda specimen: specimen.id,
)
@pytest.mark.filterwarnings("ignore")
def test_a_script_runs_for_complex_numbers(specimen):
    inputs = map(made_complex, specimen.inputs())
    found = check(specimen.function, *inputs, gradient=specimen.gradient, clauses=specimen.clause)[
        specimen.clause
    ]
    assert found.verdict is Verdict.BROKEN
    assert "ended with" not in found.repro
    assert printed_by(found.repro).strip()


class Twice(torch.autograd.Function):
    """Right but at zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs() * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x == 0, 2.0, 2 * x.abs()) * g


class Cubed(torch.autograd.Function):
    """Its slope is a constant to autograd."""

    @staticmethod
    def forward(ctx, x):
        ctx.slope = 3 * x * x
        return x**3

    @staticmethod
    def backward(ctx, g):
        return ctx.slope * g


def test_the_numbers_of_special_values_and_of_large_second_derivatives_come_again():
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for function, given, clause in ((Twice, x, "values"), (Cubed, x.repeat(700), "double")):
        found = check(function, given.requires_grad_(), clauses=clause, gradient="exact")[clause]
        assert found.verdict == "broken"
        assert not found.repro.startswith("#")  # which says what it does not show


class GivesItsInputBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, other):
        ctx.save_for_backward(other)
        return value, value * other

    @staticmethod
    def backward(ctx, g, h):
        (other,) = ctx.saved_tensors
        return g + h * other.square(), None


def test_a_script_steps_beside_an_input_that_is_an_output_too():
    x, other = normal(3, 2), normal(3, 2, seed=2).detach()
    finding = check(GivesItsInputBack, x, other, clauses="derivative")["derivative"]
    first = [float(text.strip("[").split(",")[0]) for text in (finding.expected, finding.got)]
    printed = re.findall(r"\[(-?[0-9.]+)", printed_by(finding.repro))
    assert [*map(float, printed)] == pytest.approx(first, rel=1e-3)
