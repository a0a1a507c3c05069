"""One lasting layer over `torch.autograd.Function.apply`, which nobody else notices."""

import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.internal.functions import Scale, Shifted, Square, early

import pullback
from pullback.internal import torch as inside

PROGRAM = Path(__file__).with_name("compile_functions.py")


def passing(call, cls, args, kwargs):
    return call(cls, *args, **kwargs)


@pytest.fixture(autouse=True)
def covered():
    with inside.answering(passing):
        pass
    yield
    assert inside._layer(torch.autograd.Function).everywhere == ()


def test_answers_come_innermost_first_and_those_of_all_threads_last():
    seen = []

    def note(name):
        def answer(call, cls, args, kwargs):
            seen.append((name, cls, kwargs))
            return call(cls, *args, **kwargs)

        return answer

    end = inside.watch_apply(torch.autograd.Function, note("all"))
    takes_keywords = torch.__version__ >= "2.13"
    keywords = {"factor": 3.0} if takes_keywords else {}
    factors = () if takes_keywords else (3.0,)
    with inside.answering(note("outer")), inside.answering(note("inner")):
        out = Scale.apply(torch.tensor(2.0), *factors, **keywords)
    end()
    Scale.apply(torch.tensor(2.0))
    assert out == 6.0
    assert seen == [(name, Scale, keywords) for name in ("inner", "outer", "all")]


def test_an_answer_may_call_another_class_or_nothing():
    def answer(call, cls, args, kwargs):
        return call(Square, *args) if cls is Scale else "nothing"

    with inside.answering(answer):
        assert Scale.apply(torch.tensor(3.0)) == 9.0
        assert Square.apply(torch.tensor(3.0)) == "nothing"
    assert Square.apply(torch.tensor(3.0)) == 9.0


def test_an_error_leaves_no_answer_behind():
    def refuse(call, cls, args, kwargs):
        raise LookupError("refused")

    with pytest.raises(LookupError, match="refused"), inside.answering(refuse):
        Square.apply(torch.tensor(1.0))
    assert Square.apply(torch.tensor(2.0)) == 4.0


def test_an_end_that_is_called_twice_ends_one():
    seen = []

    def note(call, cls, args, kwargs):
        seen.append(cls)
        return call(cls, *args, **kwargs)

    first = inside.watch_apply(torch.autograd.Function, note)
    second = inside.watch_apply(torch.autograd.Function, note)
    first()
    first()
    Square.apply(torch.tensor(1.0))
    assert seen == [Square]
    second()


def test_threads_that_interleave_keep_their_own_answers_and_leave_none():
    """Entering and leaving in every order left a patch in place for ever, before."""
    barrier = threading.Barrier(4, timeout=60)

    def work(number):
        mine = []

        def answer(call, cls, args, kwargs):
            mine.append(int(args[0]))
            return call(cls, *args, **kwargs)

        for turn in range(200):
            if turn % 20 == 0:
                barrier.wait()
            with inside.answering(answer):
                assert Square.apply(torch.tensor(float(number))) == number**2
            assert Square.apply(torch.tensor(-1.0)) == 1.0
        return mine

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [[number] * 200 for number in range(4)]


def test_calls_of_all_threads_are_watched_while_others_come_and_go():
    seen = []

    def watch(call, cls, args, kwargs):
        seen.append(threading.get_ident())
        return call(cls, *args, **kwargs)

    def work(_):
        for _ in range(100):
            inside.watch_apply(torch.autograd.Function, passing)()
            with inside.answering(passing):
                Square.apply(torch.tensor(1.0))

    end = inside.watch_apply(torch.autograd.Function, watch)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    end()
    assert len(seen) == 800


def test_a_copy_of_the_file_finds_the_layer_that_is_there():
    spec = importlib.util.spec_from_file_location("_a_copy", inside.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy._layer(torch.autograd.Function) is inside._layer(torch.autograd.Function)
    seen = []

    def note(call, cls, args, kwargs):
        seen.append(cls)
        return call(cls, *args, **kwargs)

    with copy.answering(note), inside.answering(note):
        Square.apply(torch.tensor(1.0))
    assert seen == [Square, Square]


def test_a_class_with_an_apply_of_its_own_can_be_covered():
    class Base:
        @classmethod
        def apply(cls, x):
            """Add one."""
            return x + 1

    class Derived(Base):
        pass

    Base.__module__ = "tests.internal.functions"
    seen = []

    def note(call, cls, args, kwargs):
        seen.append(cls)
        return call(cls, *args, **kwargs)

    try:
        end = inside.watch_apply(Base, note)
        assert Derived.apply(1) == 2
        end()
        assert Derived.apply(2) == 3
    finally:
        del vars(sys.modules[Base.__module__])[inside._MARK]
    assert seen == [Derived]
    assert Base.apply.__doc__ == "Add one."


def test_apply_looks_as_it_did():
    function = torch.autograd.Function
    assert pickle.loads(pickle.dumps(function.apply)) == function.apply
    assert pickle.loads(pickle.dumps(Square.apply)) == Square.apply
    assert Square.apply == Square.apply != Scale.apply
    assert Square.apply.__self__ is Square
    assert Square.apply.__name__ == "apply"
    assert inspect.unwrap(Square.apply).__qualname__.endswith(".apply")
    assert "apply" not in vars(Square)
    assert Shifted.apply(torch.tensor(1.0)) == 4.0


@pytest.mark.slow
def test_dynamo_sees_no_difference():
    """Functions, names given before and after, own applies: the same graphs, the same refusals."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    bare, covered = done.stdout.split("covered:\n")
    assert "early: equal" in bare
    assert covered == bare


@pytest.mark.skipif(torch.__version__ >= "2.14", reason="torch 2.14 has apply in C++: see _cover")
def test_a_name_that_was_given_before_is_answered_too():
    with inside.answering(lambda call, cls, args, kwargs: "answered"):
        assert early(torch.tensor(1.0)) == "answered"


class Cube(torch.autograd.Function):
    """As published: both rules apply another Function in combined form."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Square.apply(x) * x

    @staticmethod
    def backward(ctx, g):
        return 3 * Square.apply(ctx.saved_tensors[0]) * g


def test_completed_rules_complete_what_they_apply_in_each_thread_alone():
    cube = pullback.complete(Cube)

    def work(number):
        x = torch.tensor(float(number), dtype=torch.float64)
        for _ in range(5):
            # Not forward mode, whose level torch keeps for all threads together.
            assert torch.func.grad(torch.func.grad(cube.apply))(x) == 6 * number
            with pytest.raises(RuntimeError, match="setup_context"):  # outside of any rule
                torch.func.grad(Square.apply)(x)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(1, 9))) == [True] * 8
    assert inside._layer(torch.autograd.Function).thread.answers == ()
