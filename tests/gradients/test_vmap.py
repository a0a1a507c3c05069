"""Batched equals a loop, forward and backward, wherever the batch dimension is."""

import pytest
import torch
from tests.gradients.table import FLOWING, ROWS, each
from torch.func import grad, vmap

from pullback.gradients import noise_gradient

BATCH = 4


def batched(row, places):
    stacks = [row.tensors(seed) for seed in range(BATCH)]
    columns = list(zip(*stacks, strict=True))
    return tuple(
        column[0] if place is None else torch.stack(column, place)
        for column, place in zip(columns, places, strict=True)
    )


def item(tensors, places, index):
    return tuple(
        tensor if place is None else tensor.select(place, index)
        for tensor, place in zip(tensors, places, strict=True)
    )


def all_places(row):
    count = len(row.shapes)
    yield (0,) * count
    yield (1,) * count
    for index in range(count if count > 1 else 0):
        yield tuple(None if other == index else 0 for other in range(count))


@each(ROWS)
def test_forward(row):
    for places in all_places(row):
        tensors = batched(row, places)
        got = vmap(row.call, places)(*tensors)
        for index in range(BATCH):
            expected = row.value(*item(tensors, places, index))
            torch.testing.assert_close(got[index], expected, msg=f"in_dims={places}")


@each(FLOWING)
def test_gradients_of_each_sample(row):
    weight = row.cotangent(row.tensors()[0])

    def loss(*tensors):
        return (row.call(*tensors) * weight).sum()

    everything = tuple(range(len(row.shapes)))
    for places in all_places(row):
        tensors = batched(row, places)
        got = vmap(grad(loss, everything), places)(*tensors)
        for index in range(BATCH):
            expected = row.backward(weight, *item(tensors, places, index))
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a[index], b, msg=f"in_dims={places}")


@each(FLOWING)
def test_gradients_through_the_batch(row):
    # What is not batched gets the sum over the samples, each with its own cotangent.
    for places in all_places(row):
        tensors = tuple(tensor.requires_grad_() for tensor in batched(row, places))
        output = vmap(row.call, places)(*tensors)
        weight = row.cotangent(output)
        got = torch.autograd.grad(
            output, tensors, weight, allow_unused=True, materialize_grads=True
        )
        rules = [
            row.backward(weight[index], *item(tensors, places, index)) for index in range(BATCH)
        ]
        for a, place, samples in zip(got, places, zip(*rules, strict=True), strict=True):
            stack = torch.stack([sample.detach() for sample in samples], place or 0)
            expected = stack.sum(0) if place is None else stack
            torch.testing.assert_close(a.detach(), expected, msg=f"in_dims={places}")


def test_noise_follows_the_randomness_that_vmap_is_told():
    x = torch.zeros(BATCH, 500, dtype=torch.float64)

    def noise(randomness):
        return vmap(grad(lambda t: noise_gradient(t, 1.0).sum() - t.sum()), randomness=randomness)(
            x
        )

    different, same = noise("different"), noise("same")
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])
    assert abs(float(different.std()) - 1) < 0.1
    with pytest.raises(RuntimeError, match="randomness"):
        noise("error")
