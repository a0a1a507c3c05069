"""What makes no sense is refused by name, at the call."""

import pytest
import torch

import pullback.gradients as room
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError

CALLS = {
    "scale_gradient": lambda x: room.scale_gradient(x, 2.0),
    "scale_forward": lambda x: room.scale_forward(x, 2.0),
    "scale_both": lambda x: room.scale_both(x, 2.0, 2.0),
    "reverse_gradient": room.reverse_gradient,
    "stop_gradient": room.stop_gradient,
    "clip_gradient": lambda x: room.clip_gradient(x, 1.0),
    "normalise_gradient": room.normalise_gradient,
    "noise_gradient": lambda x: room.noise_gradient(x, 1.0),
    "where_gradient": lambda x: room.where_gradient(x, torch.tensor(True)),
    "dtype_gradient": lambda x: room.dtype_gradient(x, torch.float16),
    "straight_through": lambda x: room.straight_through(torch.ones(3), x),
    "straight_through_round": room.straight_through_round,
    "straight_through_sign": room.straight_through_sign,
    "straight_through_threshold": room.straight_through_threshold,
    "straight_through_one_hot": room.straight_through_one_hot,
    "replace_gradient": lambda x: room.replace_gradient(x, torch.ones(1)),
}
each_call = pytest.mark.parametrize("name", CALLS)


def test_the_table_is_whole():
    functions = {name for name in room.__all__ if name[0].islower()}
    assert set(CALLS) == functions


@each_call
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers_and_booleans(name, dtype):
    with pytest.raises(ArgumentTypeError, match=name):
        CALLS[name](torch.ones(3).to(dtype))


@each_call
@pytest.mark.parametrize("value", [None, 1.0, "x", [1.0]])
def test_no_tensor(name, value):
    with pytest.raises(ArgumentTypeError, match=name):
        CALLS[name](value)


@each_call
def test_sparse(name):
    with pytest.raises(UnsupportedError, match=f"{name} does not take sparse_coo"):
        CALLS[name](torch.eye(3).to_sparse())


@each_call
def test_nested(name):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(UnsupportedError, match=f"{name} does not take nested"):
        CALLS[name](nested)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="torch before 2.8")
@each_call
def test_packed(name):
    packed = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises((UnsupportedError, ArgumentTypeError)):
        CALLS[name](packed)


COMPLEX_REFUSED = [name for name in CALLS if name.startswith("straight_through_")]


@pytest.mark.filterwarnings("ignore:.*quantized:UserWarning")
def test_a_quantised_decision():
    soft = torch.ones(3, requires_grad=True)
    hard = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    with pytest.raises(UnsupportedError, match=r"(?s)quantised.*hard\.dequantize\(\)"):
        room.straight_through(hard, soft)
    room.straight_through(hard.dequantize(), soft).sum().backward()
    assert torch.equal(soft.grad, torch.ones(3))


@pytest.mark.parametrize("name", COMPLEX_REFUSED)
def test_complex_numbers_have_no_order(name):
    with pytest.raises(ArgumentTypeError, match="complex"):
        CALLS[name](torch.ones(3, dtype=torch.complex64))


X = torch.ones(2, 3)
BAD = [
    lambda: room.clip_gradient(X),
    lambda: room.clip_gradient(X, 1.0, 1.0),
    lambda: room.clip_gradient(X, 0.0),
    lambda: room.clip_gradient(X, norm=-1.0),
    lambda: room.clip_gradient(X, norm=float("nan")),
    lambda: room.clip_gradient(X, "1"),
    lambda: room.clip_gradient(X, torch.tensor(1.0)),
    lambda: room.clip_gradient(X, 1.0, dim=0),
    lambda: room.clip_gradient(X, norm=1.0, dim=2),
    lambda: room.clip_gradient(X, norm=1.0, dim=(0, -2)),
    lambda: room.clip_gradient(X, norm=1.0, dim=()),
    lambda: room.clip_gradient(X, norm=1.0, dim=(0.5,)),
    room.ClipGradient,
    lambda: room.NormaliseGradient(0.0),
    lambda: room.normalise_gradient(X, 1j),
    lambda: room.noise_gradient(X, -1.0),
    lambda: room.noise_gradient(X, 1j),
    lambda: room.noise_gradient(X, torch.tensor([1.0, -1.0, 1.0])),
    lambda: room.noise_gradient(X, 1.0, generator=3),
    lambda: room.NoiseGradient(1.0, generator=3),
    lambda: room.where_gradient(X, torch.ones(3)),
    lambda: room.where_gradient(X, torch.ones(4, dtype=torch.bool)),
    lambda: room.where_gradient(X, None),
    lambda: room.dtype_gradient(X, torch.int32),
    lambda: room.dtype_gradient(X, "float16"),
    lambda: room.dtype_gradient(X, torch.complex64),
    lambda: room.straight_through(torch.ones(3), X),
    lambda: room.straight_through(None, X),
    lambda: room.straight_through(torch.ones(2, 3, dtype=torch.complex64), X),
    lambda: room.replace_gradient(X, torch.ones(4, 3)),
    lambda: room.replace_gradient(X, torch.ones(4, 2, 3)),
    lambda: room.straight_through_sign(X, window=0.0),
    lambda: room.straight_through_threshold(X, float("nan")),
    lambda: room.straight_through_one_hot(X, dim=2),
    lambda: room.straight_through_one_hot(X, dim=0.5),
    lambda: room.straight_through_one_hot(torch.ones(())),
    lambda: room.straight_through_one_hot(torch.ones(2, 0)),
]


@pytest.mark.parametrize("call", BAD, ids=range(len(BAD)))
def test_bad_arguments(call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.given is not None


@pytest.mark.parametrize("name", ["scale_gradient", "scale_forward", "reverse_gradient"])
def test_a_number_beyond_all_floats(name):
    with pytest.raises(ArgumentError, match="larger than any"):
        getattr(room, name)(torch.ones(3), 10**400)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("std", [2 + 0j, torch.tensor(2 + 0j)], ids=["number", "tensor"])
def test_a_complex_deviation(dtype, std):
    with pytest.raises(ArgumentTypeError, match="std is complex") as caught:
        room.noise_gradient(torch.ones(3, dtype=dtype), std)
    assert caught.value.mend == "Pass std.real."  # a complex x takes none either
