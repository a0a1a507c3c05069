"""Each function has a module of its name, which does the same and keeps its factors."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import pullback.gradients as room

MODULES = {
    "ScaleGradient": (room.ScaleGradient(0.5), lambda x: room.scale_gradient(x, 0.5)),
    "ScaleForward": (room.ScaleForward(factor=3.0), lambda x: room.scale_forward(x, 3.0)),
    "ScaleBoth": (
        room.ScaleBoth(forward=3.0, backward=torch.tensor(0.5)),
        lambda x: room.scale_both(x, 3.0, 0.5),
    ),
    "ReverseGradient": (room.ReverseGradient(0.5), lambda x: room.reverse_gradient(x, 0.5)),
    "StopGradient": (room.StopGradient(), room.stop_gradient),
    "ClipGradient": (
        room.ClipGradient(norm=0.5, dim=-1),
        lambda x: room.clip_gradient(x, norm=0.5, dim=-1),
    ),
    "NormaliseGradient": (
        room.NormaliseGradient(2.0),
        lambda x: room.normalise_gradient(x, 2.0),
    ),
    "NoiseGradient": (
        room.NoiseGradient(0.1, torch.Generator().manual_seed(0)),
        lambda x: room.noise_gradient(x, 0.1, torch.Generator().manual_seed(0)),
    ),
    "WhereGradient": (
        room.WhereGradient(torch.tensor([True, False, True])),
        lambda x: room.where_gradient(x, torch.tensor([True, False, True])),
    ),
    "DtypeGradient": (
        room.DtypeGradient(torch.float16),
        lambda x: room.dtype_gradient(x, torch.float16),
    ),
    "StraightThroughRound": (room.StraightThroughRound(), room.straight_through_round),
    "StraightThroughSign": (
        room.StraightThroughSign(window=1.0),
        lambda x: room.straight_through_sign(x, window=1.0),
    ),
    "StraightThroughThreshold": (
        room.StraightThroughThreshold(0.2),
        lambda x: room.straight_through_threshold(x, 0.2),
    ),
    "StraightThroughOneHot": (
        room.StraightThroughOneHot(dim=0),
        lambda x: room.straight_through_one_hot(x, dim=0),
    ),
    "StraightThrough": (
        lambda x: room.StraightThrough()(torch.ones(2, 3), x),
        lambda x: room.straight_through(torch.ones(2, 3), x),
    ),
    "ReplaceGradient": (
        lambda x: room.ReplaceGradient()(torch.ones(2, 3), x),
        lambda x: room.replace_gradient(torch.ones(2, 3), x),
    ),
}


def test_each_function_has_its_module():
    functions = [name for name in room.__all__ if name[0].islower()]
    capitals = {"".join(word.capitalize() for word in name.split("_")) for name in functions}
    assert capitals == set(MODULES)
    assert sorted(room.__all__) == room.__all__


@pytest.mark.parametrize("name", MODULES)
def test_the_module_is_the_function(name):
    module, function = MODULES[name]
    results = []
    for call in (module, function):
        x = torch.arange(6.0).reshape(2, 3).sub(2.5).requires_grad_()
        output = call(x)
        if output.requires_grad:
            output.backward(torch.linspace(-1, 1, 6).reshape(2, 3))
        results.append((output.detach(), x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert (results[0][1] is None) == (results[1][1] is None)
    if results[0][1] is not None:
        assert torch.equal(results[0][1], results[1][1])


ANY = "()"
MADE = {
    "ClipGradient": "(value=None, norm=None, *, dim=None)",
    "DtypeGradient": "(dtype)",
    "NoiseGradient": "(std, generator=None)",
    "NormaliseGradient": "(norm=1.0, *, dim=None)",
    "ReplaceGradient": ANY,
    "ReverseGradient": "(strength=1.0, *, allow_nan=False)",
    "ScaleBoth": "(forward, backward, *, allow_nan=False)",
    "ScaleForward": "(factor, *, allow_nan=False)",
    "ScaleGradient": "(factor, *, allow_nan=False)",
    "StopGradient": ANY,
    "StraightThrough": ANY,
    "StraightThroughOneHot": "(*, dim=-1)",
    "StraightThroughRound": ANY,
    "StraightThroughSign": "(*, window=None)",
    "StraightThroughThreshold": "(threshold=0.0)",
    "WhereGradient": "(mask)",
}
SHOWN = {
    "ClipGradient": "value=None, norm=0.5, dim=-1",
    "DtypeGradient": "dtype=torch.float16",
    "NormaliseGradient": "norm=2.0, dim=None",
    "ReverseGradient": "strength=0.5, allow_nan=False",
    "ScaleBoth": "forward_factor=3.0, backward_factor=tensor of shape (), allow_nan=False",
    "ScaleForward": "factor=3.0, allow_nan=False",
    "ScaleGradient": "factor=0.5, allow_nan=False",
    "StraightThroughOneHot": "dim=0",
    "StraightThroughSign": "window=1.0",
    "StraightThroughThreshold": "threshold=0.2",
    "WhereGradient": "mask=tensor of shape (3,)",
}


def made(name):
    found = MODULES[name][0]
    return found if isinstance(found, nn.Module) else getattr(room, name)()


def signature_of(function):
    signature = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


@pytest.mark.parametrize("name", MODULES)
def test_what_users_see_of_a_module(name):
    kind, module = getattr(room, name), made(name)
    assert (kind.__name__, kind.__qualname__) == (name, name)
    assert signature_of(kind) == MADE[name]
    takes = {"StraightThrough": "(hard, soft)", "ReplaceGradient": "(x, like)"}
    assert signature_of(module.forward) == takes.get(name, "(x)")
    assert kind.__doc__.startswith("`")
    assert "Example:" in kind.__doc__
    assert kind.forward.__doc__.startswith("Return ``")
    shown = SHOWN.get(name, "")
    if name == "NoiseGradient":
        shown = f"std=0.1, generator={module.generator!r}"
    assert module.extra_repr() == shown
    assert repr(module) == f"{name}({shown})"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_copied_pickled_and_inherited_from(name):
    module = made(name)
    inherited = copy.deepcopy(module)
    inherited.__class__ = type("Inherited", (type(module),), {})
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), inherited):
        assert isinstance(other, type(module))
        assert {*vars(other)} == {*vars(module)}
        assert [*other.state_dict()] == [*module.state_dict()]
        inputs = [
            torch.linspace(-1, 1, 6).reshape(2, 3)
            for _ in inspect.signature(module.forward).parameters
        ]
        assert torch.equal(other(*inputs), module(*inputs))


def test_factors_keep_their_dtype_when_the_model_changes_its_own():
    factor = torch.tensor([1e-9, 1e-9, 1e-9])
    for module in (
        room.ScaleGradient(factor),
        room.ScaleForward(nn.Parameter(factor.clone())),
        room.ScaleBoth(factor, factor),
        room.ReverseGradient(factor),
        room.NoiseGradient(factor),
    ):
        model = nn.Sequential(nn.Linear(3, 3), module).half()
        assert model[0].weight.dtype == torch.float16
        for tensor in (*module.parameters(), *module.buffers()):
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor.detach(), factor)
        model.to("meta")
        assert all(t.device.type == "meta" for t in (*module.parameters(), *module.buffers()))


def test_the_gradient_of_a_factor_keeps_its_dtype_too():
    module = room.ScaleForward(nn.Parameter(torch.tensor(2.0)))
    module(torch.tensor([1e-9])).sum().backward()
    module.half()
    assert module.factor.grad.dtype == torch.float32
    assert module.factor.grad == torch.tensor(1e-9)


def test_copies_and_state():
    module = room.ScaleBoth(torch.tensor(3.0), torch.tensor(0.5))
    assert set(module.state_dict()) == {"forward_factor", "backward_factor"}
    other = copy.deepcopy(module)
    assert other.forward_factor is not module.forward_factor
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))


def test_a_caller_keeps_its_factor():
    factor = torch.tensor(2.0)
    module = room.ScaleGradient(factor)
    factor.fill_(5.0)
    assert module.factor == 2
