"""A crash or a hang of the checked code is a verdict, not the end."""

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from tests.copies import run_python
from tests.fuzzing import spread
from tests.specimens.right.edges import NoiseFromGenerator
from tests.specimens.right.smooth import Cube, WeightsInside

from pullback.conformance import Verdict, check
from pullback.conformance.process._forked import forked
from pullback.errors import ArgumentError
from pullback.internal._workers import start_worker


class DiesUnderFake(torch.autograd.Function):
    """Reads memory by its address, which a fake tensor does not have."""

    @staticmethod
    def forward(ctx, x):
        if type(x) is not torch.Tensor:
            ctypes.string_at(0)
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


class HangsTwice(torch.autograd.Function):
    """Hangs when backward is called with a cotangent that requires a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if cotangent.requires_grad:
            time.sleep(600)
        return 2 * x * cotangent


class ExitsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        sys.exit(3)


def points():
    return torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)


def test_a_process_that_dies_is_a_verdict_and_the_next_clauses_run():
    report = check(
        DiesUnderFake, points(), isolate=True, clauses=["derivative", "fake", "structure"]
    )
    assert report["fake"].verdict is Verdict.CRASHES
    assert "SIGSEGV" in report["fake"].detail
    assert report["derivative"].verdict is Verdict.HOLDS
    assert report["structure"].verdict is Verdict.SKIPPED
    assert not report.ok


def test_a_hang_is_a_verdict_and_the_next_clauses_have_as_long_again(monkeypatch):
    times = iter([0.0, 1.5])  # to start a process takes time on a busy machine: that is not theirs

    def start_slowly(module, folder, *, loaded):
        time.sleep(next(times))
        return start_worker(module, folder)

    monkeypatch.setattr("pullback.conformance._isolate.start_worker", start_slowly)
    started = time.monotonic()
    report = check(
        HangsTwice, points(), isolate=True, timeout=1, clauses=["derivative", "double", "form"]
    )
    assert report["double"].verdict is Verdict.CRASHES
    assert "1 s" in report["double"].detail
    assert report["form"].verdict is Verdict.HOLDS
    assert time.monotonic() - started < 120


def test_a_hang_without_isolation_is_a_verdict_too():
    report = check(HangsTwice, points(), timeout=0.5, clauses=["double", "form"])
    assert report["double"].verdict is Verdict.CRASHES
    assert report["form"].verdict is Verdict.HOLDS


def test_an_exit_is_a_verdict_in_either_way():
    report = check(ExitsInBackward, points(), clauses=["form", "structure"])
    assert report["form"].verdict is Verdict.CRASHES


def test_isolated_and_direct_reports_agree():
    weights = {"w": points(), "b": [points()]}
    direct = check(WeightsInside, points(), weights, clauses=["derivative", "structure", "saved"])
    apart = check(
        WeightsInside, points(), weights, clauses=["derivative", "structure", "saved"], isolate=True
    )
    assert apart.findings == direct.findings
    assert (apart.gradient, apart.inferred) == (direct.gradient, direct.inferred)


def test_generators_and_numbers_are_handed_over():
    generator = torch.Generator().manual_seed(7)
    report = check(
        NoiseFromGenerator, points(), generator, clauses=["derivative", "deterministic"],
        isolate=True,
    )  # fmt: skip
    assert [finding.verdict for finding in report] == [Verdict.HOLDS, Verdict.HOLDS]


class Handle:
    """Has no form as plain data."""

    def __init__(self, factor):
        self.factor = factor

    def __del__(self):
        pass


def local_function():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, handle):
            ctx.handle = handle
            if type(x) is not torch.Tensor:
                ctypes.string_at(0)
            return x * handle.factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.handle.factor, None

    return Local


def test_what_no_other_process_finds_is_isolated_in_a_copy():
    clauses = ["derivative", "fake", "structure"]
    report = check(local_function(), points(), Handle(3.0), isolate=True, clauses=clauses)
    assert report["fake"].verdict is Verdict.CRASHES
    assert "SIGSEGV" in report["fake"].detail
    assert report["derivative"].verdict is Verdict.HOLDS


def test_where_no_copy_can_be_made_the_reason_is_said(monkeypatch):
    monkeypatch.setattr("pullback.conformance._isolate.can_copy", lambda: False)
    with pytest.raises(ArgumentError, match="cannot be found by another process"):
        check(local_function(), points(), Handle(3.0), isolate=True)
    with pytest.raises(ArgumentError, match="cannot be handed to another process"):
        check(Cube, points(), Handle(3.0), isolate=True)
    with pytest.raises(ArgumentError, match="A copy of this process"):
        check(Cube, points(), isolate="copy")


def test_a_copy_and_a_fresh_process_agree():
    # Compiling twice takes half a minute.
    clauses = ["derivative", "state", *spread(["transforms", "compile"], 2)]
    fresh = check(Cube, points(), isolate=True, clauses=clauses)
    copy = check(Cube, points(), isolate="copy", clauses=clauses)
    assert copy.findings == fresh.findings


def test_inputs_that_do_not_fit_are_an_argument_error():
    with pytest.raises(ArgumentError, match="cannot be called"):
        check(Cube, points(), points(), isolate=True)


def test_a_function_of_a_script_is_found_by_its_path_and_the_script_not_run_again(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from pullback.conformance import check

            class Double(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x): return 2 * x
                @staticmethod
                def backward(ctx, g): return 3 * g

            # Without a guard.
            report = check(Double, torch.ones(2), isolate=True, clauses="derivative")
            print(report["derivative"].verdict.value, report.function)
            """
        )
    )
    done = run_python(str(script))
    assert done.stdout == f"broken {script}:Double\n", done.stderr


def test_the_worker_imports_nothing_from_the_folder_it_is_started_in(tmp_path, monkeypatch):
    # A recording that somebody sends may lie beside a file of a standard name.
    (tmp_path / "json.py").write_text("open('was_run', 'w').close()\nfrom os import *\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    report = check(Cube, torch.ones(2, dtype=torch.float64), clauses="linear", isolate=True)
    assert not (tmp_path / "was_run").exists()
    assert report["linear"].verdict is Verdict.HOLDS


class IsStopped(torch.autograd.Function):
    """Is stopped in its first backward, for twice as long as the check may take."""

    stopped = False

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        if not IsStopped.stopped:
            IsStopped.stopped = True
            me = os.getpid()
            with subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {me}"]):
                os.kill(me, signal.SIGSTOP)
        return cotangent * 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all time counts")
def test_a_worker_that_is_stopped_and_continued_costs_nothing_but_time():
    report = check(
        IsStopped, points(), gradient="exact", isolate=True, timeout=1, clauses=["linear", "form"]
    )
    assert [finding.verdict for finding in report] == [Verdict.HOLDS, Verdict.HOLDS]
    assert not report.unfinished


class NeverAnswers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(600)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def test_preparation_has_a_limit_too(monkeypatch):
    monkeypatch.setattr(forked, "__defaults__", (1.0,))  # seconds, of 20
    report = check(NeverAnswers, points(), timeout=0.3, clauses=["form"])
    assert report["form"].verdict is Verdict.CRASHES
    assert "no answer" in report["form"].detail


class SumInDefault(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x @ torch.ones(x.shape[-1])

    @staticmethod
    def backward(ctx, cotangent):
        return torch.outer(cotangent, torch.ones(4))


def test_a_fresh_process_makes_new_tensors_as_this_one_does():
    torch.set_default_dtype(torch.float64)
    try:
        report = check(SumInDefault, torch.randn(3, 4), clauses="derivative", isolate=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert report["derivative"].verdict is Verdict.HOLDS, report


TESTING = os.getpid()  # which is not to end


def only_positive(number):
    if number < 0 and os.getpid() != TESTING:
        os.kill(os.getpid(), signal.SIGSEGV)
    return number


class DiesOfAnEdit(torch.autograd.Function):
    """The derivative is scale**3: with another sign of the scale, backward ends the process."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return scale**3 * x.sum()

    @staticmethod
    def backward(ctx, g):
        return g * only_positive(ctx.scale) * torch.ones(5, dtype=g.dtype), None


class DiesOfANumber(torch.autograd.Function):
    """Forward ends the process where it is handed what it is not for."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(x)
        only_positive(rows - 2)
        return x.lgamma()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.erfinv(), None


@pytest.mark.parametrize(
    ("function", "number"),
    [(DiesOfAnEdit, 1.7), pytest.param(DiesOfANumber, 2, marks=pytest.mark.slow)],
)
def test_an_edit_that_ends_the_process_is_no_crash_of_the_function(function, number):
    x = torch.full((5,), 0.4, dtype=torch.float64, requires_grad=True)
    report = check(function, x, number, clauses=["derivative", "linear"], isolate="copy")
    assert report["derivative"].verdict is Verdict.BROKEN
    assert report["linear"].verdict is Verdict.HOLDS
    if function is DiesOfAnEdit:  # the others are tried all the same
        assert "Write `" in report["derivative"].hint
