"""Wrong kernels are caught, right ones are not accused."""

import math
import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace

import numba
import pytest
import torch
from tests.fuzzing import examples, spread
from tests.verification.bases import BASES, softmax
from tests.verification.kernels import DTYPES, FORBIDDEN, RIGHT, WRONG

from pullback import verify
from pullback.cli import _verify as command
from pullback.cli import main
from pullback.conformance import Arguments
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.report import Verdict, read_reports
from pullback.verification import _conduct
from pullback.verification._answers import Subject
from pullback.verification._error import Judge, Result
from pullback.verification._verify import isolated

# `make test` takes one computation for each kind; `make fuzz` takes all.
WRONG_CASES = [
    (kind, base)
    for number, (kind, (_, bases)) in enumerate(WRONG.items())
    for base in (bases if examples(1) > 1 else [bases[number % len(bases)]])
]
holds = Verdict.HOLDS
RIGHT_CASES = [(kind, base, dtype) for kind in RIGHT for base in BASES for dtype in DTYPES]


def judge(kernel, base, dtype=torch.float32):
    torch.manual_seed(0)
    return verify(kernel, base.reference, base.make(dtype), forbid=FORBIDDEN, isolate=False)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("kind", "base"), WRONG_CASES)
def test_what_is_wrong_is_caught(kind: str, base: str) -> None:
    fault, _ = WRONG[kind]
    report = judge(fault(BASES[base]), BASES[base])
    assert not report.ok, str(report)


def test_what_a_kernel_replaces_of_torch_is_put_back() -> None:
    allclose = torch.allclose
    fault, (base, *_) = WRONG["replaces_a_function_of_torch"]
    assert not judge(fault(BASES[base]), BASES[base]).ok
    assert torch.allclose is allclose


@pytest.mark.parametrize(("kind", "base", "dtype"), spread(RIGHT_CASES, 27))
def test_what_is_right_is_not_accused(kind: str, base: str, dtype: torch.dtype) -> None:
    report = judge(RIGHT[kind](BASES[base]), BASES[base], dtype)
    assert report.ok, str(report)


def plain(x):
    return torch.softmax(x, -1)


def dies(x):
    if x.shape[-1] == 17:
        os.kill(os.getpid(), signal.SIGKILL)
    return x.softmax(-1)


def hangs(x):
    while x.shape[-1] == 17:
        pass
    return x.softmax(-1)


def test_a_kernel_that_dies_breaks_the_promise_in_hand_alone() -> None:
    report = verify(dies, plain, (torch.randn(2, 16),))
    assert report["sizes"].verdict == "crashes"
    assert [f.clause for f in report.problems] == ["sizes"]
    assert report["finished"].verdict == "holds"


def test_a_kernel_that_hangs_is_a_verdict() -> None:
    report = verify(hangs, plain, (torch.randn(2, 16),), isolate=False, timeout=0.3)
    assert "no answer within 0.3 s" in report["sizes"].detail


def test_a_module_is_cast_with_its_inputs() -> None:
    reference = torch.nn.Linear(4, 3)

    class Kernel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = reference

        def forward(self, x):
            return x @ self.inner.weight.mT + self.inner.bias

    report = verify(Kernel(), reference, lambda: (torch.randn(5, 4),), isolate=False)
    assert report.ok, str(report)


def test_a_kernel_whose_parameters_fix_a_size_is_not_accused_of_another_one() -> None:
    """Between forward and backward lies a call of another size, if one is answered."""
    layer = torch.nn.Linear(6, 4)
    kernel = lambda x: x @ layer.weight.mT + layer.bias  # noqa: E731
    report = verify(kernel, layer, (torch.randn(3, 6),), isolate=False)
    assert report["state"].verdict is Verdict.HOLDS, report


def gates(x, memory, weight):
    """A memory of one entry fits any weight, by broadcasting."""
    i, f, g, o = (x @ weight.mT).chunk(4, -1)
    return o.sigmoid() * (f.sigmoid() * memory + i.sigmoid() * g.tanh()).tanh()


def gates_otherwise(x, memory, weight):
    n = memory.shape[-1]
    z = x @ weight.mT
    kept = z[:, n : 2 * n].sigmoid() * memory
    new = z[:, :n].sigmoid() * z[:, 2 * n : 3 * n].tanh()
    return z[:, 3 * n :].sigmoid() * (kept + new).tanh()


def test_a_size_that_fits_by_broadcasting_alone_is_not_judged() -> None:
    given = torch.randn(3, 5), torch.randn(3, 4), torch.randn(16, 5)
    assert verify(gates_otherwise, gates, given, isolate=False).ok


def along(x, knots, heights):
    """On straight lines between the points of a table, the first and the last one continued."""
    right = torch.searchsorted(knots.detach(), x.detach()).clamp(1, len(knots) - 1)
    part = (x - knots[right - 1]) / (knots[right] - knots[right - 1])
    return heights[right - 1] + part * (heights[right] - heights[right - 1])


def along_otherwise(x, knots, heights):
    left = (x[:, None] > knots[1:-1]).sum(1)
    part = (x - knots[left]) / (knots[left + 1] - knots[left])
    return (1 - part) * heights[left] + part * heights[left + 1]


def test_a_table_of_four_knots_stays_in_order() -> None:
    given = 3 * torch.rand(20), torch.tensor([0.0, 1.0, 1.5, 3.0]), torch.randn(4)
    report = verify(along_otherwise, along, given, isolate=False)
    assert report.ok, report


def test_rows_fewer_than_their_labels_are_tried_at_other_counts() -> None:
    def kernel(x, labels):
        return (x.logsumexp(-1) - x.gather(1, labels[:, None])[:, 0]).sum() / 9

    given = torch.randn(9, 13), torch.tensor([12, 3, 0, 7, 12, 5, 1, 9, 4])
    report = verify(kernel, torch.nn.functional.cross_entropy, given, isolate=False)
    assert report["sizes"].verdict is Verdict.BROKEN


def halves(x):
    one, other = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat([one - other, one + other], -1)


def test_sizes_that_have_to_be_even_are_tried() -> None:
    def kernel(x):
        one, other = x.chunk(2, -1)
        return torch.cat([one - other, (one + other)[..., :64]], -1)

    assert verify(halves, halves, (torch.randn(2, 8),), isolate=False)["sizes"].verdict is holds
    found = verify(kernel, halves, (torch.randn(2, 8),), isolate=False)["sizes"]
    assert "size 130" in found.detail


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [
        (lambda x: x.sort(-1).values[..., -1], lambda x: x.amax(-1)),
        (lambda x: torch.where(x > 0, x, 0), lambda x: torch.maximum(x, torch.zeros_like(x))),
        (lambda x: torch.stack([x[..., : n + 1].amax(-1) for n in range(x.shape[-1])], -1),
         lambda x: torch.cummax(x, -1).values),
    ],
    ids=["maximum", "relu", "cumulative maximum"],
)  # fmt: skip
def test_at_a_kink_any_gradient_between_its_sides_is_right(kernel, reference) -> None:
    report = verify(kernel, reference, (torch.randn(3, 6),), isolate=False)
    assert report["values"].verdict is holds, str(report)


def test_at_a_kink_a_gradient_beyond_its_sides_is_wrong() -> None:
    report = verify(lambda x: x.relu() + (-x).relu() * 0 + x * (x == 0) * 2, torch.relu,
                    (torch.randn(3, 6),), isolate=False)  # fmt: skip
    assert "zeros: the gradient of args[0]" in report["values"].detail


def test_a_reference_that_gives_no_answer_in_time_accuses_nobody() -> None:
    def slow(x):
        while x.shape[-1] > 20:
            pass
        return plain(x)

    kernel = lambda x: x.softmax(-1)  # noqa: E731
    report = verify(kernel, slow, (torch.randn(2, 16),), isolate=False, timeout=0.3)
    assert report["sizes"].verdict is Verdict.SKIPPED


def test_what_is_not_a_number_in_the_example_is_not_hidden() -> None:
    given = torch.tensor([[1.0, math.nan, -2.0]])
    hides = verify(lambda x: x.nan_to_num().clamp(-1, 1), lambda x: x.clamp(-1, 1), (given,))
    assert "entry (0, 1)" in hides["outputs"].detail
    assert verify(lambda x: x.minimum(0 * x), lambda x: x.clamp(max=0), (given,)).ok


def test_integers_are_compared_exactly() -> None:
    def kernel(x):
        return x.flip(-1).argmax(-1)

    def reference(x):
        return x.argmax(-1)

    report = verify(kernel, reference, (torch.randn(3, 5),), isolate=False)
    assert report["outputs"].verdict == "broken"
    assert report["sizes"].verdict == "skipped"


def test_what_cannot_be_judged_is_refused_before_any_work() -> None:
    with pytest.raises(ArgumentTypeError, match="as kernel"):
        verify(3, plain, (torch.ones(2),))
    with pytest.raises(ArgumentTypeError, match="as inputs"):
        verify(plain, plain, torch.ones(2))
    with pytest.raises(ArgumentTypeError, match="no positional arguments"):
        verify(plain, plain, lambda: torch.ones(2))
    for wrong in ({"seed": -1}, {"timeout": 0.0}, {"timeout": math.inf}):
        with pytest.raises(ArgumentError, match="not a time, or the seed"):
            verify(plain, plain, (torch.ones(2),), **wrong)
    with pytest.raises(ArgumentError, match="does not take the inputs"):
        verify(plain, plain, (torch.ones(2), 5, 6))


def test_the_command(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(
        "import torch\n\n\n"
        "def plain(x):\n    return torch.softmax(x, -1)\n\n\n"
        "def make():\n    return (torch.randn(2, 16),)\n\n\n"
        "def cheat(x):\n    return plain(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"kernels_of_mine:{name}" for name in ("cheat", "plain", "make")]
    words = ["verify", names[0], "--reference", names[1], "--inputs", names[2], "--no-isolate"]
    assert main([*words, "--json", "found.json"]) == 1
    out = capsys.readouterr().out
    assert "It calls its reference." in out
    assert "1 Function checked, 1 broken" in out
    assert f"rerun: pullback verify {names[0]} --reference {names[1]} --inputs {names[2]}" in out
    [report], reruns, _ = read_reports([tmp_path / "found.json"])
    assert [f.clause for f in report.problems] == ["forbidden"]
    assert reruns[names[0]].startswith("pullback verify")


def test_inputs_given_as_an_expression_are_made_once(tmp_path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(command, "evaluate", lambda text: made.append(text) or (torch.ones(3),))
    words = ["verify", "torch:abs", "--reference", "torch:relu", "--inputs", "torch.ones(3)"]
    assert main([*words, "--no-isolate"]) in (0, 1)
    assert made == ["torch.ones(3)"]


@pytest.mark.parametrize(
    "words",
    [["--timeout", "nan"], ["--seed", "-1"], ["--inputs", "3"], ["--inputs", "operator:not_"]],
    ids=" ".join,
)
def test_what_fits_no_kernel_is_refused_once(words, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["verify", "torch:abs", "torch:exp", "--reference", "torch:relu"]
    assert main([*given, "--inputs", "torch.ones(3)", *words, "--results", "a.jsonl"]) == 2
    assert capsys.readouterr().err.startswith("pullback: ")
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("file", [".", "none/a.jsonl", "source.py"])
def test_a_file_that_cannot_take_results_is_refused_before_any_work(
    file, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source.py").write_text("print(1)")
    words = ["verify", "torch:abs", "--reference", "torch:relu", "--inputs", "torch.ones(3)"]
    assert main([*words, "--results", file]) == 2
    assert "results" in capsys.readouterr().err
    assert (tmp_path / "source.py").read_text() == "print(1)"


@pytest.mark.skipif(sys.platform != "linux", reason="no copies of the process")
def test_a_kernel_that_kills_its_process_at_each_call_is_judged_once() -> None:
    def kernel(x):
        os.kill(os.getpid(), signal.SIGKILL)

    report = verify(kernel, plain, (torch.randn(2, 3),))
    assert report["outputs"].verdict == "crashes"
    assert report["outputs"].hint.startswith("Call it by itself")
    assert report["gradients"].detail == "its outputs are wrong as given"
    assert report.environment["speed"] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="no copies of the process")
def test_what_was_known_before_a_kernel_killed_its_process_stays_known() -> None:
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.softmax(x, -1)

        @staticmethod
        def backward(ctx, cotangent):
            os.kill(os.getpid(), signal.SIGKILL)

    report = verify(Kernel, plain, (torch.randn(2, 3),))
    assert [f.clause for f in report.problems] == ["gradients"]
    assert report.problems[0].verdict == "crashes"


@pytest.mark.skipif(sys.platform != "linux", reason="no copies of the process")
def test_what_runs_in_a_copy_may_start_processes() -> None:
    def steps(known):
        yield "started", None
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        yield "started", Result(Verdict.HOLDS, str(process.exitcode))

    assert isolated(steps, 5.0, isolate=True)["started"].detail == "0"


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


def test_an_apply_has_the_name_of_its_function() -> None:
    report = verify(Twice.apply, lambda x: 2 * x, (torch.randn(3),), isolate=False)
    assert report.function.endswith(":Twice")


def test_a_slow_kernel_takes_more_of_the_time_than_its_reference(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(
        _conduct, "time", SimpleNamespace(perf_counter=lambda: clock[0], sleep=lambda _: None)
    )

    def taking(seconds):
        def softmax(x):
            clock[0] += seconds
            return torch.softmax(x, -1)

        return softmax

    report = verify(taking(4.0), taking(2.0), (torch.randn(2, 3),), isolate=False)
    assert report.environment["speed"] == "2.00 x the reference's"


@pytest.mark.slow
def test_the_command_goes_on_from_its_file(tmp_path, monkeypatch, capsys) -> None:
    module = tmp_path / "kernels_to_go_on.py"
    module.write_text(
        "import torch\n\n\n"
        "def plain(x):\n    return torch.exp(x)\n\n\n"
        "def kernel(x):\n    return x.exp()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"kernels_to_go_on:{name}" for name in ("kernel", "missing", "plain")]
    words = ["verify", *names[:2], "-r", names[2], "-i", "torch.randn(4)", "--results", "a.jsonl"]
    assert main(words) == 3  # of the one that is missing nothing is known
    assert "missing" in capsys.readouterr().out
    kept = (tmp_path / "a.jsonl").read_text()
    assert main(words) == 3
    assert (tmp_path / "a.jsonl").read_text().strip() == kept.strip()
    module.write_text(module.read_text() + "\n\ndef missing(x):\n    return 2 * x.exp()\n")
    assert main(words) == 1
    assert (tmp_path / "a.jsonl").read_text().count("kernels_to_go_on:kernel") == 2 * kept.count(
        "kernels_to_go_on:kernel"
    )


def test_a_numba_kernel_is_not_accused() -> None:
    @numba.njit
    def rows(x, y):
        for i in range(x.shape[0]):
            largest, total = x[i].max(), 0.0
            for j in range(x.shape[1]):
                y[i, j] = math.exp(x[i, j] - largest)
                total += y[i, j]
            for j in range(x.shape[1]):
                y[i, j] /= total

    def kernel(x):
        flat = x.detach().reshape(-1, x.shape[-1]).double().contiguous()
        y = torch.empty_like(flat)
        rows(flat.numpy(), y.numpy())
        return y.view(x.shape).to(x.dtype)

    inputs = (torch.randn(3, 8),)
    report = verify(kernel, plain, inputs, forbid=["softmax"], isolate=False)
    assert report.ok, str(report)
    assert report["gradients"].verdict == "lacking"


@pytest.mark.breadth
@pytest.mark.skipif(examples(1) == 1, reason="compiling takes seconds: make fuzz")
def test_a_compiled_kernel_is_not_accused() -> None:
    compiled = torch.compile(RIGHT["traced"](BASES["softmax"]), backend="eager", dynamic=True)
    torch.compiler.reset()
    report = verify(compiled, plain, (torch.randn(3, 8),), isolate=False)
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", [267, 597])  # the two of 800 that were accused
def test_a_gradient_that_vanishes_is_off_by_what_rounds_a_cotangent(seed: int) -> None:
    def composed(x):
        powers = x.exp()
        return powers / powers.sum(-1, keepdim=True)

    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(seed))
    given, one = (Arguments.of((value.requires_grad_(),)) for value in (x, x[:, :1].clone()))
    judge = Judge(kernel=Subject(composed), reference=Subject(softmax), seed=seed, given=given)
    assert not judge.compare(one).fault
