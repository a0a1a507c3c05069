"""The audit of derived rules: what it refuses, what it leaves out, how it is switched off."""

import os
import random
import types

import numpy as np
import pytest
import torch
from tests.copies import run_python
from torch.testing._internal.distributed.fake_pg import FakeStore

import pullback
from pullback.errors import UnsupportedError

X = torch.tensor([0.7, 1.3, 0.9], dtype=torch.float64)


def make(**attributes):
    """x ** 3; its derivative waits where autograd does not see it: as whole numbers."""

    class Hidden(pullback.Function):
        runs = 0

        @staticmethod
        def forward(ctx, x):
            Hidden.runs += 1
            ctx.derivative = (3 * x * x * 2**40).long()
            return x**3

        @staticmethod
        def backward(ctx, g):
            return ctx.derivative.double() / 2**40 * g

    return type("Hidden", (Hidden,), attributes)


def second(function):
    return torch.func.jacrev(torch.func.grad(lambda x: function.apply(x).sum()))(X)


def records(name="Hidden"):
    return [record for record in pullback.audits() if record.function == name]


def test_a_disagreement_is_refused_with_both_numbers_each_time():
    function = make()
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="disagrees with what") as caught:
            second(function)
        assert "derived 0, measured" in str(caught.value)


@pytest.mark.parametrize("how", ["globally", "block", "class"])
def test_it_can_be_switched_off(how):
    function = make(audited=False) if how == "class" else make()
    if how == "block":
        with pullback.audit(False):
            assert not second(function).any()
    elif how == "globally":
        switch = pullback.audit(False)
        try:
            assert not second(function).any()
        finally:
            switch.__exit__()
    else:
        assert not second(function).any()


def test_an_environment_variable_switches_it_off():
    # Imported anew, in a copy: the variable is read when that happens.
    script = (
        "import importlib, pullback.tensor._audit as a; print(importlib.reload(a).is_auditing())"
    )
    for value, expected in (("0", "False"), ("off", "False"), ("1", "True")):
        environment = {**os.environ, "PULLBACK_AUDIT": value}
        ran = run_python("-c", script, environment=environment)
        assert ran.stdout.strip() == expected


def test_a_capture_is_left_out_and_said(monkeypatch):
    function = make()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not second(function).any()
    found = [record for record in records() if record.reason and "captured" in record.reason]
    assert {record.verdict for record in found} == {"skipped"}
    with pytest.raises(UnsupportedError, match="disagrees with what"):
        second(function)


OWN = torch.Generator().manual_seed(3)
PYTHON = random.Random(3)
NUMPY = np.random.default_rng(3)


class Draws(pullback.Function):
    """x ** 3, which draws from every generator; what it draws changes nothing."""

    @staticmethod
    def forward(ctx, x):
        torch.rand(2)
        torch.rand(2, generator=OWN)
        np.random.rand()
        (random.random(), PYTHON.random(), NUMPY.random())
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


def test_generators_are_as_before():
    def states():
        return (
            torch.get_rng_state().tolist(),
            OWN.get_state().tolist(),
            repr(np.random.get_state(legacy=False)),
            repr(NUMPY.bit_generator.state),
            random.getstate(),
            PYTHON.getstate(),
        )

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Draws.apply(x).sum(), x, create_graph=True)
    before = states()
    (again,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(again, 6 * X)
    assert [a == b for a, b in zip(states(), before, strict=True)] == [True] * 6


def test_it_costs_a_bounded_number_of_calls_once(tmp_path):
    file = tmp_path / "calls"  # what a rule appends to a list of its own is taken back

    class Counted(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            with file.open("a") as stream:
                stream.write("x")
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    def calls():
        file.write_text("")
        torch.testing.assert_close(second(Counted), torch.diag(6 * X))
        return len(file.read_text())

    first = calls()
    with pullback.audit(False):
        plain = calls()
    assert calls() == plain < first < plain + 60
    assert [record.verdict for record in records("Counted")] == ["agrees"]


def test_state_outside_is_as_before():
    log = []

    class Logged(pullback.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            log.append("forward")
            Logged.calls += 1
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    x = X.clone().requires_grad_()
    state = torch.get_rng_state()
    (first,) = torch.autograd.grad(Logged.apply(x).sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), x)
    assert log == ["forward"]
    assert Logged.calls == 1
    assert torch.equal(state, torch.get_rng_state())


def test_a_function_that_communicates_is_left_out():
    class Reduced(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(x.clone())
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    torch.testing.assert_close(second(Reduced), torch.diag(6 * X))
    (record,) = records("Reduced")
    assert record.verdict == "skipped"
    assert "communicate" in record.reason


class Group:
    calls = 0

    def reduce(self, x):
        Group.calls += 1
        torch.distributed.all_reduce(x.clone())


group = Group()
parallel = types.ModuleType("parallel")
parallel.reduce = group.reduce


def test_a_function_that_communicates_through_helpers_is_left_out():
    class ReducedFar(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            parallel.reduce(x.detach())
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    # No threads: those of gloo may wait for the interpreter that waits for them at the end.
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(ReducedFar.apply(x).sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
    finally:
        torch.distributed.destroy_process_group()
    (record,) = records("ReducedFar")
    assert record.verdict == "skipped"
    assert "communicate" in record.reason
    assert Group.calls <= 2  # the call itself, and once more for its derivative


def test_code_that_is_compiled_is_audited_on_stand_in_values():
    function = make()
    torch._dynamo.reset()
    with pytest.raises(Exception, match="disagrees with what"):
        torch.compile(torch.func.hessian(lambda x: function.apply(x).sum()), backend="eager")(X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_nonlinear_backward_in_low_precision_has_no_tangent(dtype):
    class Clipped(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.clamp(-1, 1)

    x = torch.ones(3, dtype=dtype)
    with pytest.raises(UnsupportedError, match="not linear in the cotangent"):
        torch.func.jvp(Clipped.apply, (x,), (4 * x,))


class Tree:
    """An argument that keeps a view of another object, which cannot be copied."""

    def __init__(self):
        self.kept = {"a": 1}
        self.names = self.kept.keys()


def test_an_argument_that_looks_at_others_is_no_way_around_it():
    class Hidden(pullback.Function):
        @staticmethod
        def forward(ctx, x, tree):
            ctx.derivative = (3 * x * x * 2**40).long()
            return x**3

        @staticmethod
        def backward(ctx, g):
            return ctx.derivative.double() / 2**40 * g, None

    with pytest.raises(UnsupportedError, match="disagrees with what"):
        torch.func.jacrev(torch.func.grad(lambda x: Hidden.apply(x, Tree()).sum()))(X)
