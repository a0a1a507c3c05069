"""Limits: of CPU time for one call, and of standing still; in the Python API too."""

import os
import signal
import threading
import time
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.domains import ConjugateGradients, definite
from tests.specimens.wrong import memory

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing import _prepare
from pullback.conformance.process import _limits
from pullback.conformance.process._forked import forked
from pullback.conformance.process._limits import NoEnd, limited

CHEAP = [c.id for c in CLAUSES if c.id not in ("compile", "compositions", "cuda-graph")]


@pytest.fixture(autouse=True)
def no_clock():
    """Whoever runs the tests may have set the one clock that there is."""
    left = signal.setitimer(signal.ITIMER_REAL, 0.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, *left)


def spin():
    while True:
        pass


def test_what_takes_more_cpu_time_is_ended():
    with pytest.raises(NoEnd, match="CPU"), limited(0.05):
        spin()


def test_what_waits_is_not_ended_by_the_clock():
    with limited(0.05):
        time.sleep(0.3)


def test_what_stands_still_is_ended():
    with pytest.raises(NoEnd, match="no CPU time"), limited(60.0, 0.3):
        threading.Event().wait()


def test_being_stopped_once_costs_nothing_but_time():
    with limited(60.0):
        look = _limits._look(0.1)
        for _ in range(2):  # looks in a row that find it where it was, and the third does not
            look(signal.SIGALRM, None)
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        for _ in range(3):
            look(signal.SIGALRM, None)
        with pytest.raises(NoEnd, match="no CPU time"):
            look(signal.SIGALRM, None)


def test_a_last_signal_that_comes_late_does_not_end_the_process():
    """It may go to a thread that is not running: as blocked here, it comes when all is put back."""

    def work():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF, signal.SIGALRM})
        with limited(60.0, 60.0):
            for number in (signal.SIGPROF, signal.SIGALRM):
                os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        return "lives"

    assert forked(work) == "lives"


def test_timers_and_handlers_are_left_as_they_were():
    before = [signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM)]
    with limited(5.0), limited(5.0):
        pass
    assert [signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_shorter_limit_within_a_longer_one_is_kept_and_the_longer_one_goes_on():
    def both():
        with pytest.raises(NoEnd, match=r"0\.05 s"), limited(0.05):
            spin()
        assert 0 < signal.getitimer(signal.ITIMER_PROF)[0] < 0.12
        spin()

    with pytest.raises(NoEnd, match=r"0\.15 s"), limited(0.15):
        both()


def test_elsewhere_than_in_the_main_thread_there_is_no_limit():
    found = []

    def work():
        with limited(0.001):
            found.append(sum(range(10**6)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found


def test_a_solver_of_symmetric_matrices_ends():
    report = check(ConjugateGradients, definite(5), normal(5), clauses=["derivative", "linear"])
    assert report.ok
    assert report["derivative"].verdict == "holds"


class EndsAtOnePoint(torch.autograd.Function):
    """Never ends with other numbers, as what iterates until it has what it was written for."""

    total = 0.0

    @staticmethod
    def forward(ctx, x):
        while abs(float(x.detach().sum()) - EndsAtOnePoint.total) > 1e-3:
            pass
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


def test_what_ends_as_it_was_given_alone_ends_the_check_all_the_same(monkeypatch):
    monkeypatch.setattr(_limits, "_LEAST", 0.02)
    monkeypatch.setattr(_limits, "_COMPILES", 0.02)
    x = normal(3)
    monkeypatch.setattr(EndsAtOnePoint, "total", float(x.detach().sum()))
    # What the first check of a process loads is no time of the Function's: limits go by its calls.
    check(torch.sin, x, clauses="derivative")
    started = time.process_time()
    report = check(EndsAtOnePoint, x, clauses=CHEAP)
    assert time.process_time() - started < 60
    assert report["deterministic"].verdict == "holds"


class EndsInOneThread(torch.autograd.Function):
    """Waits for ever in any thread but the first."""

    waits = staticmethod(lambda: threading.Event().wait())

    @staticmethod
    def forward(ctx, x):
        if threading.current_thread() is not threading.main_thread():
            EndsInOneThread.waits()
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


def test_a_call_in_a_thread_has_a_limit(monkeypatch):
    monkeypatch.setattr(_limits, "_STANDS", 0.1)
    report = check(EndsInOneThread, normal(3), clauses="state")
    assert report["state"].verdict == "crashes"
    assert "no answer" in report["state"].detail


class EndsWhenSeeded(torch.autograd.Function):
    """Computes for ever where nobody has put the generator back."""

    @staticmethod
    def forward(ctx, x):
        while EndsWhenSeeded.hangs and torch.initial_seed() == 7:
            pass
        ctx.save_for_backward(x)
        return x.sin()

    hangs = False
    backward = EndsInOneThread.backward


def test_a_call_that_is_not_seeded_has_a_limit(monkeypatch):
    probe = _prepare.prepare(Subject.of(EndsWhenSeeded), Arguments.of((normal(3),)), 0)
    monkeypatch.setattr(EndsWhenSeeded, "hangs", True)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        with pytest.raises(NoEnd):
            replace(probe, patience=0.05).unseeded(normal(3))


def test_a_thread_that_stands_still_holds_up_no_later_check(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(_limits, "_STANDS", 0.1)
        check(EndsInOneThread, normal(3), clauses="state")  # tried without a breach, too
    function = memory.BackwardScalesSaved
    specimen = next(one for one in memory.SPECIMENS if one.function is function)
    found = []

    def again():
        found.append(check(function, *specimen.inputs(), clauses="mutation,retain"))

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "a later check waits for a thread that never ends"
    assert not found[0].ok


class CompilesForEachPrecision(torch.autograd.Function):
    """Its first call in each precision takes as long as a compiler."""

    known: ClassVar[set] = set()

    @staticmethod
    def compile(*key):
        end = time.process_time() + 0.1
        while key not in CompilesForEachPrecision.known and time.process_time() < end:
            pass
        CompilesForEachPrecision.known.add(key)

    @staticmethod
    def forward(ctx, x):
        CompilesForEachPrecision.compile("forward", x.dtype)
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        CompilesForEachPrecision.compile("backward", x.dtype)
        return x.cos() * cotangent


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", [(), ("forward",), ("forward", "backward")])
def test_what_compiles_for_each_precision_has_the_time_for_it(known, monkeypatch):
    """Also where the program has called it before, so that the calls as given are quick."""
    monkeypatch.setattr(_limits, "_LEAST", 0.02)
    monkeypatch.setattr(_limits, "_MANY", 1.0)
    warm = {(what, torch.float64) for what in known}
    monkeypatch.setattr(CompilesForEachPrecision, "known", warm)
    report = check(CompilesForEachPrecision, normal(3), clauses="dtype,autocast,derivative")
    verdicts = {finding.clause: finding.verdict.value for finding in report.findings}
    assert verdicts["dtype"] == "holds", str(report)
    assert verdicts["derivative"] == "holds"
    assert "end" not in report["autocast"].detail


def test_the_time_to_compile_is_for_another_precision_alone():
    """What never ends at numbers of the given precision had four times as long."""
    given = Arguments.of((normal(3),))
    probe = replace(_prepare.prepare(Subject.of(CompilesForEachPrecision), given, 0), patience=5.0)
    low = probe.at(given.cast(torch.float32))
    assert [p.limit for p in (low, low.at(given), probe)] == [20.0, 5.0, 5.0]


class CompilesForEachLayout(CompilesForEachPrecision):
    """Its first backward for contiguous cotangents takes as long as a compiler, and for others."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        CompilesForEachPrecision.compile(cotangent.stride(), cotangent.numel() > 0)
        return x.cos() * cotangent


def test_what_compiles_for_each_layout_has_the_time_for_it(monkeypatch):
    monkeypatch.setattr(_limits, "_LEAST", 0.02)
    monkeypatch.setattr(_limits, "_MANY", 1.0)
    monkeypatch.setattr(CompilesForEachPrecision, "known", set())
    report = check(CompilesForEachLayout, normal(3, 4), clauses="layout")
    assert report["layout"].verdict == "holds", str(report)
