"""The recorder: what it keeps, what it leaves alone, and its bounds."""

import enum
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.errors import ProgramError
from pullback.recording import Call, Limits, Record, Recorder, copy_call, record_program
from pullback.tensor import Function

ROOT = Path(__file__).parents[2]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return y.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return None, cotangent


class Branch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kind):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("on purpose")


def applied(recorder: Recorder) -> int:
    """How often `Scale` was applied."""
    record = recorder.records.get(Scale)
    return 0 if record is None else recorder.tally[record.slot]


@pytest.fixture
def kept():
    """A recorder over both bases, with what it kept; ended afterwards."""
    calls: list[tuple[type, Call]] = []

    def snapshot(args, keywords, limit):
        size = sum(a.numel() * a.element_size() for a in args if isinstance(a, torch.Tensor))
        if size > limit:
            raise RuntimeError("too large")
        copied = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
        return Call(copied, dict(keywords), [], size)

    def keep(record: Record, call: Call) -> None:
        alike = lambda one: (one[0], one[1].number) == (record.function, call.number)  # noqa: E731
        calls[:] = [*(one for one in calls if not alike(one)), (record.function, call)]

    recorder = Recorder(snapshot, keep, Limits(calls=2, call_bytes=1000, total_bytes=1500))
    recorder.install(torch.autograd.Function)
    recorder.install(Function)
    recorder.calls = calls
    yield recorder
    recorder.uninstall()
    seen = applied(recorder)
    Scale.apply(torch.ones(1), 1.0)
    assert seen == applied(recorder)


def test_calls_of_one_shape_are_kept_once(kept) -> None:
    for _ in range(5):
        Scale.apply(torch.ones(3, requires_grad=True), 2.0).sum().backward()
    assert len(kept.calls) == 1
    assert applied(kept) == 5


def test_later_numbers_take_the_place_of_the_first_while_they_are_finite(kept) -> None:
    """The first numbers of a program show little: a membrane is at rest."""
    recorder = Recorder(copy_call)
    recorder.install(torch.autograd.Function)
    try:
        for number in range(10):
            Scale.apply(torch.full((3,), float(number)), 2.0)
            Scale.apply(torch.full((2,), float(number) if number < 6 else torch.inf), 2.0)
    finally:
        recorder.uninstall()
    for calls in (recorder.records[Scale].calls, [call for _, call in kept.calls]):
        assert {call.arguments[0][0].item() for call in calls} == {8.0, 3.0}


def test_other_shapes_and_dtypes_are_kept_up_to_the_limit(kept) -> None:
    for size in (1, 2, 3, 4):
        Scale.apply(torch.ones(size), 2.0)
    Scale.apply(torch.ones(2, dtype=torch.float64), 2.0)
    assert len(kept.calls) == 2
    assert applied(kept) == 5


class Mode(enum.Enum):
    SUM = 1
    MEAN = (2,)


@dataclass
class Options:
    mode: str


@pytest.mark.parametrize(
    "kinds",
    [
        tuple(Mode), (torch.float32, torch.float64), ({"mode": "sum"}, {"mode": "mean"}),
        (Options("sum"), Options("mean")), (torch.sin, torch.cos), (len, max), (int, float),
        (Pair(torch.ones(2), 1), Pair(torch.ones(3), 1)),
    ],
    ids=lambda kinds: type(kinds[0]).__name__,
)  # fmt: skip
def test_arguments_that_choose_a_branch_are_kept_each(kinds, kept) -> None:
    for kind in (*kinds, *kinds):
        Branch.apply(torch.ones(2), kind)
    assert [call.arguments[1] for _, call in kept.calls] == list(kinds)


def test_what_cannot_be_described_does_not_end_the_program(kept) -> None:
    endless: list[object] = [1]
    endless.append(endless)
    for value in (endless, torch.nn.UninitializedParameter()):
        Branch.apply(torch.ones(2), value)
    made = make_fx(lambda x: Branch.apply(x, None), tracing_mode="symbolic")(torch.ones(3))
    assert made(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
    assert kept.tally[kept.records[Branch].slot] == 3


def test_calls_of_each_pattern_of_gradients_are_kept_the_commonest_first() -> None:
    """What a program tries out first, without gradients, takes no place from how it trains."""
    recorder = Recorder(copy_call, limits=Limits(calls=3))
    recorder.install(torch.autograd.Function)
    try:
        for size in (1, 2, 3, 4):
            Pass.apply(torch.ones(size), torch.ones(size))
        for size in (5, 6, 6, 6, 6):
            Pass.apply(torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True))
        Pass.apply([torch.ones(7)], torch.ones(7, requires_grad=True))
    finally:
        recorder.uninstall()
    recorder.settle()
    record = recorder.records[Pass]
    assert [call.pattern for call in record.calls] == ["11", "01", "00"]
    counts = {name: recorder.tally[pattern.slot] for name, pattern in record.patterns.items()}
    assert counts == {"00": 4, "11": 5, "01": 1}
    assert recorder.tally[record.slot] == 10


def test_a_call_that_makes_no_graph_takes_no_place_from_one_that_does() -> None:
    """A backward that applies the Function again, for a step of a solver, need not have its own."""
    recorder = Recorder(copy_call, limits=Limits(calls=1))
    recorder.install(torch.autograd.Function)
    x = torch.ones(3, requires_grad=True)
    try:
        with torch.no_grad():
            Pass.apply(x[:1], x)
            Pass.apply(x[:2], x)
        Pass.apply(x, x)
    finally:
        recorder.uninstall()
    recorder.settle()
    assert [len(call.arguments[0]) for call in recorder.records[Pass].calls] == [3]


def test_it_is_known_whether_a_backward_ran(kept) -> None:
    """What ran in the program and fails alone needs more than the arguments that are kept."""
    x = torch.ones(3, requires_grad=True)
    y = Pass.apply(x, x)
    record = kept.records[Pass]
    assert kept.tally[record.answered] == 0
    y.sum().backward()
    assert kept.tally[record.answered] == 1


def test_an_in_place_forward_is_recorded_as_it_was_called(kept) -> None:
    InPlace.apply(torch.ones(3))
    assert kept.calls[0][1].arguments[0].tolist() == [1.0, 1.0, 1.0]


def test_tensors_within_are_copied_and_other_objects_kept() -> None:
    handle = object()
    given = {"a": [Pair(torch.ones(2, requires_grad=True), handle)], "b": torch.Size([1])}
    call = copy_call((given,), {}, 100)
    assert call is not None
    (copied,) = call.arguments
    first, second = copied["a"][0]
    assert isinstance(copied["a"][0], Pair)
    assert first is not given["a"][0].first
    assert first.requires_grad
    assert second is handle
    assert copied["b"] == (1,)
    assert call.size == 8
    assert copy_call((torch.empty(2, device="meta"),), {}, 100) is None
    with pytest.raises(RuntimeError, match="more than"):
        copy_call(([Pair(torch.ones(99), handle)],), {}, 100)


def test_a_call_that_fails_is_not_kept(kept) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        Fails.apply(torch.ones(3))
    assert kept.calls == []


def test_why_a_call_is_not_found_again_is_noted_where_it_is_kept(kept) -> None:
    class Local(Fails):
        pass

    class Kept(Scale):
        pass

    with pytest.raises(ValueError, match="on purpose"):
        Local.apply(torch.ones(3))
    Kept.apply(torch.ones(3), 2.0)
    assert kept.records[Local].reasons == {}
    (reason,) = kept.records[Kept].reasons
    assert "defined inside test_why_a_call" in reason


def test_bytes_are_bounded_for_a_call_and_in_all(kept) -> None:
    Scale.apply(torch.ones(300, dtype=torch.float64), 1.0)
    assert kept.records[Scale].reasons == {"too large": 1}
    Scale.apply(torch.ones(100, dtype=torch.float64), 1.0)
    InPlace.apply(torch.ones(100, dtype=torch.float64))  # 800 + 800 > 1500
    assert kept.bytes == 800
    assert kept.records[InPlace].reasons == {"too large": 1}


def test_a_fault_of_ours_is_told_and_not_raised_into_the_program() -> None:
    def fail(*arguments):
        raise RuntimeError("of ours")

    def guarded(action):
        def act(*arguments):
            try:
                return action(*arguments)
            except RuntimeError as error:
                said.append(str(error))

        return act

    said: list[str] = []
    recorder = Recorder(copy_call, changed=fail, guarded=guarded)
    recorder.install(torch.autograd.Function)
    try:
        assert Scale.apply(torch.ones(2), 2.0).tolist() == [2.0, 2.0]
    finally:
        recorder.uninstall()
    assert said == ["of ours"]


def test_functions_of_torch_itself_are_left_out(kept) -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward()
    assert kept.calls == []


def test_a_pullback_function_is_recorded(kept) -> None:
    class Twice(Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    Twice.apply(torch.ones(3, requires_grad=True)).sum().backward()
    assert [function for function, _ in kept.calls] == [Twice]


def test_what_a_program_computes_does_not_change(kept) -> None:
    x = torch.randn(5, generator=torch.Generator().manual_seed(3)).requires_grad_()
    Scale.apply(x, 1.5).sum().backward()
    recorded = x.grad.clone()
    kept.uninstall()
    x.grad = None
    Scale.apply(x, 1.5).sum().backward()
    assert torch.equal(recorded, x.grad)
    kept.install(torch.autograd.Function)


# torch itself makes an instance while it traces, and warns about it.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compile_still_sees_the_function(kept) -> None:
    compiled = torch.compile(lambda x: Scale.apply(x, 2.0), fullgraph=True, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_the_bootstrap_does_not_import_torch(tmp_path: Path) -> None:
    """A program that never imports torch, or sets it up first, must not notice the recorder."""
    environment = {
        "PYTHONPATH": str(ROOT / "src/pullback/recording/_bootstrap"),
        "PULLBACK_RECORD_DIRECTORY": str(tmp_path),
        "PULLBACK_RECORD_LIMITS": "1,1,1",
    }
    code = "import sys; print('torch' in sys.modules, 'pullback' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"], done.stderr
    assert any(tmp_path.glob("started-*"))


def test_a_program_on_a_torch_that_is_not_supported_runs_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "__version__ = '1.13.1'\nclass Tensor: pass\nclass autograd:\n    class Function: pass\n"
    )
    code = "import torch, pathlib; pathlib.Path('ran').write_text(torch.__version__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {code}"]
    with pytest.raises(ProgramError, match="its calls could not be recorded") as caught:
        record_program(command, environment=environment)
    assert (tmp_path / "ran").read_text() == "1.13.1"
    assert "torch 1.13.1" in str(caught.value)
    assert "torch 2.7 or newer" in str(caught.value)
    assert "TMPDIR" not in str(caught.value)  # there is room


def test_the_recorder_needs_no_pullback_in_the_program(tmp_path: Path) -> None:
    """A program whose Python lacks pullback is recorded, and finds none afterwards either."""
    (tmp_path / "pullback.py").write_text("raise ImportError('there is no pullback here')")
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\n"
        "class Twice(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): return g * 2\n"
        "twice = Twice.apply\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for _ in range(4):\n"
        "    layer(torch.ones(2)).detach().requires_grad_().sum().backward()\n"
        "    optimizer.step()\n"
        "torch.func.vmap(lambda x: x * 2)(twice(torch.ones(3, requires_grad=True)))\n"
        "try:\n"
        "    import pullback.internal.torch\n"
        "except ImportError:\n"
        "    print('none')\n"
        "else:\n"
        "    raise SystemExit('found one')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    recording, failure = record_program([sys.executable, str(script)], environment=environment)
    assert failure is None
    assert [entry.applied for entry in recording.functions] == [1]
    assert {item.name for item in recording.training.findings} == {"Linear.weight", "Linear.bias"}


def test_a_call_that_builds_no_graph_asks_for_no_gradient(kept) -> None:
    """As of a Function that the backward of another one applies."""
    given = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        Branch.apply(given, None)
    Branch.apply(given, None)
    kept.settle()
    assert [call.pattern for _, call in kept.calls] == ["0", "1"]
