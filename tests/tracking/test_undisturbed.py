"""A model trains with a tracker exactly as it does without."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracking.models import HuggingFaceStyle, Nested, Tied, same_bits, sequential, train
from torch import nn

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking import Tracker

MAKERS = [sequential, Nested, HuggingFaceStyle, Tied]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("every", [1, 3])
def test_twenty_steps_have_the_same_bits(make: Any, every: int) -> None:
    plain = train(make())
    model = make()
    with Tracker(model, every=every) as tracker:
        tracked = train(model)
    assert same_bits(plain, tracked)
    assert tracker.steps == 20
    assert tracker.totals()
    assert not tracker.skipped


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", MAKERS)
def test_nothing_remains_and_the_model_is_freed_without_gc(make: Any) -> None:
    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    model = make()
    with Tracker(model) as tracker:
        train(model, 2)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert "forward" not in module.__dict__
    weak = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        if "module" in locals():
            del module
        assert weak() is None
    finally:
        gc.enable()
    assert tracker.table()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace`", "ignore:.*is deprecated:DeprecationWarning")
def test_what_torch_traces_is_no_pass() -> None:
    model, x = sequential(), torch.randn(2, 5)
    with Tracker(model, functions="linear", blocks="mxfp8", names=["0", "2"]) as tracker:
        traced = torch.jit.trace(model, x, check_trace=False)
        assert not tracker.totals()
        model(x)
    assert torch.equal(traced(2 * x), model(2 * x))
    assert "pullback_tracking::" not in str(traced.inlined_graph)
    assert tracker.total("0").count == model[0](x).numel()


untold = pytest.mark.skipif(torch.__version__ < "2.9", reason="an export is a compilation there")


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=untold)])
def test_what_is_exported_meanwhile_is_the_model_alone(strict: bool) -> None:
    model, x = nn.Sequential(nn.Linear(5, 3), nn.Tanh()), torch.ones(2, 5)
    with Tracker(model, functions="linear") as tracker:
        program = torch.export.export(model, (x,), strict=strict)
        assert not tracker.totals()
    assert "pullback_tracking" not in str(program.graph)
    assert torch.equal(program.module()(x), model(x))


def test_outputs_are_the_very_objects() -> None:
    model, seen = sequential(), []
    model[0].register_forward_hook(lambda m, i, o: seen.append(o))
    model[0].register_forward_hook(lambda m, i, o: seen.append(o))
    with Tracker(model):
        model(torch.ones(2, 5))
    assert seen[0] is seen[1]


def test_in_place_activation_after_a_view() -> None:
    # A linear layer of three dimensions returns a view, whose node an operation in place removes.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    twin = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(3, 5, 4)
    totals = []
    for one in (model, twin):
        with Tracker(one) as tracker:
            one(x).square().sum().backward()
        totals.append(tracker.totals())
    assert totals[0] == totals[1]
    assert ("0", "backward") in {(key.name, key.direction) for key in totals[0]}


class Views(nn.Module):
    """Returns a view of what else it returns, or of what it keeps."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.layer, self.keeps = nn.Linear(4, 6), keeps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.hidden = self.layer(x).tanh()
        return self.hidden * 2 if self.keeps else self.hidden, self.hidden.view(-1, 2, 3)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_view_that_nobody_uses_has_no_gradient(keeps: bool) -> None:
    model = Views(keeps)
    with Tracker(model) as tracker:
        model(torch.randn(3, 4))[0].square().sum().backward()
    backward = {key.name for key in tracker.totals() if key.direction == "backward"}
    assert backward == {"layer", "(root)[0]"}  # that of the base was given to "(root)[1]"


class Parts(nn.Module):
    """Returns what one node of torch's graph gives, as heads of mean and variance do."""

    def __init__(self, split: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.split = nn.Linear(4, 6), split

    def forward(self, x: torch.Tensor) -> Any:
        return self.split(self.layer(x))


@pytest.mark.parametrize(
    "split", [lambda y: y.chunk(2, -1), torch.unbind, torch.linalg.qr, lambda y: y.split(1)]
)
def test_a_part_that_nobody_uses_ends_no_training(split: Callable[[torch.Tensor], Any]) -> None:
    model, x = Parts(split), torch.randn(5, 4)
    model(x)[0].sum().backward()
    expected = model.layer.weight.grad.clone()
    model.zero_grad()
    with Tracker(model) as tracker:
        model(x)[0].sum().backward()
    assert torch.equal(model.layer.weight.grad, expected)
    backward = {key.name for key in tracker.totals() if key.direction == "backward"}
    assert backward == {"layer", "(root)[0]"}


def test_a_part_that_nobody_uses_of_compiled_code() -> None:
    torch._dynamo.reset()
    model = Views(False)
    compiled = torch.compile(model, backend="aot_eager")
    with Tracker(model) as tracker:
        compiled(torch.randn(3, 4))[0].square().sum().backward()
    assert tracker.total("layer", "backward").count == 18


def test_inputs_and_parameters_keep_their_flags_and_gradients() -> None:
    model, x = sequential(), torch.ones(2, 5)
    with Tracker(model):
        model(x)
    assert not x.requires_grad
    assert x.grad is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_copied_model_is_not_tracked() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        train(copy.deepcopy(model), 2)
        train(pickle.loads(pickle.dumps(model)), 2)
    assert tracker.totals() == {}


def test_a_copy_made_while_a_model_is_watched_is_a_plain_model() -> None:
    model, plain = sequential(), sequential()
    with Tracker(model):
        train(model, 1)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in copies:
        for module, untouched in zip(other.modules(), plain.modules(), strict=True):
            assert vars(module).keys() == vars(untouched).keys()  # no attribute, no own forward
            assert not [name for name, held in vars(module).items() if "hooks" in name and held]
        with Tracker(other) as tracker:  # it is not marked as watched
            train(other, 1)
        assert tracker.totals()


def test_a_leaf_that_a_module_returns_keeps_no_hook() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight

    model = Constant()
    with Tracker(model) as tracker:
        model().sum().backward()
    assert tracker.total("(root)", "backward").mean == 1.0
    assert not model.weight._backward_hooks


def test_no_grad_inference_and_evaluation() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        with torch.no_grad():
            model(torch.ones(2, 5))
        with torch.inference_mode():
            model(torch.ones(2, 5))
    assert tracker.total("0").count == 28
    assert all(key.direction == "forward" for key in tracker.totals())


def test_a_forward_that_raises_half_way() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.ones(2, 4))
        train(model, 2)
    assert same_bits(train(sequential(), 2), train(sequential(), 2))
    assert tracker.total("0").count == 2 * 4 * 7


def test_the_body_raises() -> None:
    model = sequential()
    tracker = Tracker(model)

    def interrupted() -> None:
        with tracker:
            model(torch.ones(2, 5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert tracker.total("0").count == 14
    assert not model[0]._forward_hooks


def test_outputs_that_cannot_be_measured_are_named() -> None:
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    with Tracker(Sparse()) as tracker, torch.no_grad():
        tracker._model(torch.eye(2))
    assert "sparse" in tracker.skipped["(root)"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"model": "x"}, ArgumentTypeError),
        ({"every": 0}, ArgumentError),
        ({"history": 0}, ArgumentError),
        ({"scaler": 3}, ArgumentTypeError),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Tracker(**({"model": sequential()} | arguments))


def test_names_choose_modules_and_must_match() -> None:
    model = sequential()
    with Tracker(model, names=["3.*", "0"]) as tracker:
        model(torch.ones(1, 5))
    assert {key.name for key in tracker.totals()} == {"0", "3.0"}
    with Tracker(model, names=lambda name, module: isinstance(module, nn.Tanh)) as tracker:
        model(torch.ones(1, 5))
    assert {key.name for key in tracker.totals()} == {"3.0"}
    with pytest.raises(ArgumentError, match="such a name"), Tracker(model, names=["decoder*"]):
        pass
    assert not model._forward_pre_hooks
    with pytest.raises(UnsupportedError), tracker:
        pass


def test_no_host_reads_in_a_step() -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with Tracker(model) as tracker, profiler as profile:
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
    names = {event.key for event in profile.key_averages()}
    assert tracker.total("0", "backward").count == 14
    assert not names & {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"}
