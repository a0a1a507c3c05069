"""Reverse mode: the value, the gradients, their form, no copy, no mutation."""

import copy
import weakref

import pytest
import torch
from tests.gradients.table import FLOWING, ROWS, STOPPED, each, gradients, with_grad
from torch.utils.checkpoint import checkpoint

from pullback.gradients import noise_gradient, scale_both, scale_forward, stop_gradient


@each(ROWS)
@pytest.mark.parametrize("seed", [0, 3])
def test_the_value(row, seed):
    tensors = row.tensors(seed)
    torch.testing.assert_close(row.call(*tensors), row.value(*tensors), rtol=0, atol=0)


@each(FLOWING)
@pytest.mark.parametrize("seed", [0, 3])
def test_the_gradients(row, seed):
    tensors = row.tensors(seed)
    cotangent = row.cotangent(tensors[0], seed + 1)
    got = gradients(row, tensors, cotangent)
    expected = row.backward(cotangent, *tensors)
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


@each([row for row in ROWS if row.view])
def test_forward_copies_nothing(row):
    tensors = with_grad(row.tensors())
    output = row.call(*tensors)
    assert output.data_ptr() == tensors[0].data_ptr()
    assert output.shape == tensors[0].shape
    assert output.stride() == tensors[0].stride()


@each([row for row in FLOWING if row.view])
def test_in_place_on_the_output_is_refused_with_the_mend(row):
    tensors = with_grad(row.tensors())
    output = row.call(*(tensor * 1 for tensor in tensors))
    with pytest.raises(RuntimeError, match="cloning the output"):
        output.add_(1)
    row.call(*(tensor * 1 for tensor in tensors)).clone().add_(1)


@each(FLOWING)
def test_changing_the_input_later_is_safe_or_refused(row):
    tensors = row.tensors()
    cotangent = row.cotangent(tensors[0])
    leaves = with_grad(tensors)
    inner = tuple(leaf * 1 for leaf in leaves)
    output = row.call(*inner)
    with torch.no_grad():
        inner[0].mul_(5)

    def backward():
        return torch.autograd.grad(
            output, leaves, cotangent, allow_unused=True, materialize_grads=True
        )

    if row.view:  # the output was changed as well
        with pytest.raises(RuntimeError, match="cloning the output"):
            backward()
    elif row.name in {"scale_forward.tensor", "scale_both.tensor"}:  # backward needs the input
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            backward()
    else:
        torch.testing.assert_close(backward(), gradients(row, tensors, cotangent))


@each(FLOWING)
def test_inputs_and_cotangents_are_not_changed(row):
    tensors = row.tensors()
    cotangent = row.cotangent(tensors[0])
    before = copy.deepcopy((*tensors, cotangent))
    gradients(row, tensors, cotangent)
    for was, now in zip(before, (*tensors, cotangent), strict=True):
        assert torch.equal(was, now)
        assert now._version == 0


@each(FLOWING)
def test_any_layout_of_input_and_cotangent(row):
    tensors = row.tensors()
    expected = gradients(row, tensors, row.cotangent(tensors[0]))
    strided = tuple(t.mT.contiguous().mT if t.ndim > 1 else t.repeat(2)[: len(t)] for t in tensors)
    cotangent = row.cotangent(tensors[0]).mT.contiguous().mT
    torch.testing.assert_close(gradients(row, strided, cotangent), expected)
    expanded = torch.ones(1, dtype=torch.float64).expand(tensors[0].shape)
    torch.testing.assert_close(
        gradients(row, tensors, expanded), gradients(row, tensors, expanded.contiguous())
    )


@each(FLOWING)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_unneeded_gradients_change_nothing(row, which):
    tensors = row.tensors()
    if which >= len(tensors):
        pytest.skip("the function has fewer tensors")
    cotangent = row.cotangent(tensors[0])
    expected = gradients(row, tensors, cotangent)[which]
    leaves = [tensor.clone() for tensor in tensors]
    leaves[which].requires_grad_()
    output = row.call(*leaves)
    if not output.requires_grad:  # a detached value: no gradient is its zero
        assert torch.equal(expected, torch.zeros_like(expected))
        return
    (got,) = torch.autograd.grad(output, leaves[which], cotangent)
    torch.testing.assert_close(got, expected)


@each(FLOWING)
def test_two_backward_passes_over_one_graph_agree(row):
    leaves = with_grad(row.tensors())
    output = row.call(*leaves)
    cotangent = row.cotangent(output)
    first, second = (
        torch.autograd.grad(
            output, leaves, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@each(FLOWING)
def test_activation_checkpointing(row):
    leaves = with_grad(row.tensors())
    output = checkpoint(lambda *ts: row.call(*ts) * 1, *leaves, use_reentrant=False)
    cotangent = row.cotangent(output)
    got = torch.autograd.grad(output, leaves, cotangent, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(got, gradients(row, row.tensors(), cotangent))


def test_noise_under_checkpointing_is_the_same_noise():
    x = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    noise_gradient(x, 0.5).sum().backward()
    expected, x.grad = x.grad, None
    torch.manual_seed(0)
    output = checkpoint(lambda t: noise_gradient(t, 0.5) * 1, x, use_reentrant=False)
    torch.manual_seed(99)
    output.sum().backward()
    torch.testing.assert_close(x.grad, expected)


@each([row for row in ROWS if row.name in STOPPED])
def test_a_stopped_gradient_has_no_history(row):
    (x,) = with_grad(row.tensors())
    output = row.call(x * 1)
    assert not output.requires_grad
    (got,) = torch.autograd.grad((output * x).sum(), x)
    assert torch.equal(got, x)


def test_stopping_keeps_the_data():
    x = torch.randn(3)
    assert stop_gradient(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "scale", [scale_forward, lambda x, factor: scale_both(x, factor, 2.0)], ids=["forward", "both"]
)
def test_a_factor_that_is_not_learnt_keeps_no_input(scale):
    hidden = torch.randn(3, requires_grad=True) * 1
    alive = weakref.ref(hidden)
    output = scale(hidden, torch.tensor([0.5, 2.0, 3.0]))
    del hidden
    assert alive() is None
    output.sum().backward()
