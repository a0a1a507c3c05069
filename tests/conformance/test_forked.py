"""What ends a copy of the process is a verdict, and the process goes on."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch
from tests.specimens._specimen import normal

from pullback.conformance import Verdict, check
from pullback.conformance.cause._trials import tried
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare
from pullback.conformance.process import _forked
from pullback.conformance.process._forked import (
    Copy,
    ProcessDied,
    can_copy,
    forked,
    is_harmless,
    unharmed,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no fork elsewhere")


class EndsWhenFake(torch.autograd.Function):
    """Reads the memory of its input, which a fake tensor does not have."""

    @staticmethod
    def forward(ctx, x):
        if type(x).__name__ == "FakeTensor":
            ctypes.string_at(0)
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


def test_a_forward_that_dies_of_a_fake_tensor_crashes_and_the_check_goes_on():
    report = check(EndsWhenFake, normal(3), clauses=["fake", "structure", "derivative"])
    assert report["fake"].verdict is Verdict.CRASHES
    assert "SIGSEGV" in report["fake"].detail
    assert report["derivative"].verdict is Verdict.HOLDS


class EndsInACopy(torch.autograd.Function):
    """Has threads that a copy of the process has not, as numba's kernels have on several cores."""

    owner = os.getpid()

    @staticmethod
    def forward(ctx, x):
        if os.getpid() != EndsInACopy.owner:
            os.kill(os.getpid(), signal.SIGTERM)
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


@pytest.mark.parametrize("clause", ["index-width", "fake", "compile"])
def test_what_ends_in_a_copy_in_any_case_is_not_blamed(clause):
    finding = check(EndsInACopy, normal(3), clauses=clause)[clause]
    assert finding.verdict is Verdict.SKIPPED
    assert "as given too" in finding.detail


class EndsInItsMetaKernel(torch.autograd.Function):
    """Calls an operator whose kernel for tensors without data ends the process."""

    @staticmethod
    def forward(ctx, x):
        return torch.ops.pullback_ends.twice(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


@pytest.fixture
def operator():
    library = torch.library.Library("pullback_ends", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: os._exit(7), "Meta")
    yield torch.ops.pullback_ends.twice.default
    library._destroy()


def test_a_forward_that_dies_while_it_is_compiled_crashes_and_the_check_goes_on(operator):
    report = check(EndsInItsMetaKernel, normal(3), clauses=["compile", "fake", "derivative"])
    assert report["compile"].verdict is Verdict.CRASHES
    assert report["fake"].verdict is Verdict.CRASHES
    assert report["derivative"].verdict is Verdict.HOLDS


def test_an_operator_that_dies_of_a_fake_tensor_crashes_and_the_check_goes_on(operator):
    report = check(operator, normal(3), clauses=["registration"])
    assert report["registration"].verdict is Verdict.CRASHES


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="no torch.compile")
def test_what_dies_of_a_fake_tensor_alone_is_still_compiled():
    report = check(EndsWhenFake, normal(3), clauses=["compile"])
    assert report["compile"].verdict is Verdict.HOLDS


def test_answers_and_deaths():
    assert forked(lambda: {"a": [1, 2]}) == {"a": [1, 2]}
    assert forked(lambda: torch.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(ProcessDied, match="SIGKILL"):
        forked(lambda: os.kill(os.getpid(), 9))
    with pytest.raises(ProcessDied, match="without an answer"):
        forked(lambda: os._exit(3))


def test_a_tensor_of_float8_comes_back():
    eighth = torch.ones(2).to(torch.float8_e4m3fn)
    assert torch.equal(forked(lambda: eighth).float(), torch.ones(2))


def test_what_a_copy_has_not_answered_is_not_done_here():
    with pytest.raises(ProcessDied, match="no answer"):
        forked(lambda: time.sleep(30) or os.kill(os.getpid(), signal.SIGKILL), 0.3)


def test_nothing_of_the_copy_stays():
    seen = []
    forked(lambda: seen.append(1))
    assert seen == []


def test_a_copy_answers_from_how_it_was_made_and_is_gone_then():
    seen = [1]
    copies = [Copy(lambda: list(seen)) for _ in range(2)]
    pids = [copy._child.pid for copy in copies]
    seen.append(2)
    assert copies.pop().ask() == [1]
    copies.clear()  # nobody asks the other
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_a_copy_computes_where_the_original_has_threads_of_its_own() -> None:
    """Threads of OpenMP are not copied, and a copy that calls for them waits for ever."""
    values, before = torch.ones(10**6), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        total = float(values.exp().sum())
        assert Copy(lambda: float(values.exp().sum())).ask(10.0) == pytest.approx(total)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not can_copy(), reason="no copies here")
def test_no_copy_is_made_in_the_place_of_one_that_took_long(tmp_path, monkeypatch):
    monkeypatch.setattr(_forked, "_AGAIN", 0.0)

    def work():
        (tmp_path / str(os.getpid())).touch()
        assert is_harmless()
        os._exit(1)

    assert unharmed(work, "nothing") == "nothing"
    assert len([*tmp_path.iterdir()]) == 1
    monkeypatch.undo()

    def other():
        for _ in range(2):
            if is_harmless():
                os._exit(1)
        return "both are left out"

    assert unharmed(other, "nothing") == "both are left out"


FACTOR = {"is": 2.0}


class TimesFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return FACTOR["is"] * x

    @staticmethod
    def backward(ctx, g):
        return FACTOR["is"] * g


def test_a_search_that_leaves_the_code_otherwise_than_it_was_ends_its_process():
    x = torch.ones(3, dtype=torch.float64).requires_grad_()
    probe = prepare(Subject.of(TimesFactor), Arguments.of((x,), {}), 0)
    probe = replace(probe, trying=lambda clause: None)
    assert forked(lambda: tried(probe, lambda: "an edit", "none")) == "an edit"
    with pytest.raises(ProcessDied):
        forked(lambda: tried(probe, lambda: FACTOR.update({"is": 3.0}), "none"))
    assert FACTOR["is"] == 2.0
