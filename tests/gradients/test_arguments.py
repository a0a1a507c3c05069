"""What is no argument of a public call of this room ends in an error of ours, before any work."""

import functools

import numpy
import pytest
import torch
from tests.arguments import Call, public_calls, wrong_answers

from pullback import gradients as room

X, MASK = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
FLAG, COUNT = {"allow_nan": True}, "whole negative"
# Each function with what it takes beside its tensor, and which wrong arguments it takes anyway.
FUNCTIONS = {
    "clip_gradient": ({"norm": 1.0, "dim": 0}, {"dim": "negative none", "norm": "whole"}),
    "dtype_gradient": ({"dtype": torch.bfloat16}, {}),
    "noise_gradient": ({"std": 1.0}, {"std": "whole"}),
    "normalise_gradient": ({"norm": 1.0, "dim": 0}, {"dim": "negative none", "norm": "whole"}),
    "replace_gradient": ({"like": X}, {}),
    "reverse_gradient": ({"strength": 1.0}, {"strength": COUNT}),
    "scale_both": (
        {"forward": 1.0, "backward": 1.0} | FLAG,
        dict.fromkeys(("forward", "backward")),
    ),
    "scale_forward": ({"factor": 1.0} | FLAG, {"factor": None}),
    "scale_gradient": ({"factor": 1.0} | FLAG, {"factor": None}),
    "stop_gradient": ({}, {}),
    "straight_through": ({"soft": X}, {}),
    "straight_through_one_hot": ({"dim": 0}, {"dim": "negative"}),
    "straight_through_round": ({}, {}),
    "straight_through_sign": ({"window": 1.0}, {"window": "whole none"}),
    "straight_through_threshold": ({"threshold": 1.0}, {"threshold": COUNT}),
    "where_gradient": ({"mask": MASK}, {}),
}


def made(name, also, given):
    """Each argument without a tensor: with NaN, where a factor may be NaN."""
    return Call(
        getattr(room, name),
        given,
        {key: kinds or f"{COUNT} nan" for key, kinds in also.items()}
        | {"dim": also.get("dim", "")},
    )


CALLS = {}
for _name, (_given, _also) in FUNCTIONS.items():
    _first = "hard" if _name == "straight_through" else "x"
    CALLS[_name] = functools.partial(made, _name, _also, {_first: X, **_given})
    _module = "".join(word.capitalize() for word in _name.split("_"))
    # A dimension is one of a tensor, and a module has none yet.
    _kept = {} if _name in ("replace_gradient", "straight_through") else _given
    if _kept:
        CALLS[_module] = functools.partial(
            made, _module, _also | ({"dim": f"{COUNT} none"} if "dim" in _given else {}), _kept
        )
CALLS["StraightThroughOneHot"] = functools.partial(
    made, "StraightThroughOneHot", {"dim": COUNT}, {"dim": 0}
)


def test_every_public_call_is_here():
    found = {name for name in public_calls(room) if not name.endswith(".forward")}
    assert found == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(name):
    right = CALLS[name]()
    right.function(**right.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda x, dim: room.clip_gradient(x, norm=1.0, dim=dim),
        lambda x, dim: room.normalise_gradient(x, dim=(dim,)),
        lambda x, dim: room.straight_through_one_hot(x, dim=dim),
    ],
    ids=range(3),
)
def test_a_dimension_may_be_a_whole_number_of_numpy(call):
    results = []
    for dim in (1, numpy.int64(1)):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        y = call(x, dim)
        results.append((y.detach(), *torch.autograd.grad(y, x, torch.ones_like(x))))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("function", [room.clip_gradient, room.normalise_gradient])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_gradient_that_is_not_finite_has_no_direction(function, bad):
    x = torch.zeros(2, 3, requires_grad=True)
    gradient = torch.tensor([[bad, 1.0, 0.0], [3.0, 0.0, 4.0]])
    function(x, norm=1.0).backward(gradient)
    assert x.grad.isnan().all()
    x.grad = None
    function(x, norm=1.0, dim=1).backward(gradient)
    assert x.grad[0].isnan().all()
    torch.testing.assert_close(x.grad[1], gradient[1] / 5)
