"""torch.func agrees with autograd."""

import torch
from tests.gradients.table import FLOWING, ROWS, each, gradients
from torch.func import grad, jacrev, vjp


def everything(row):
    return tuple(range(len(row.shapes)))


@each(ROWS)
def test_grad(row):
    tensors = row.tensors()
    weight = row.cotangent(tensors[0])
    got = grad(lambda *ts: (row.call(*ts) * weight).sum(), everything(row))(*tensors)
    torch.testing.assert_close(got, gradients_or_zero(row, tensors, weight))


@each(ROWS)
def test_vjp(row):
    tensors = row.tensors()
    output, pull = vjp(row.call, *tensors)
    torch.testing.assert_close(output, row.value(*tensors))
    weight = row.cotangent(output)
    torch.testing.assert_close(pull(weight), gradients_or_zero(row, tensors, weight))


@each(FLOWING)
def test_jacrev(row):
    tensors = row.tensors()
    jacobian = jacrev(row.call, everything(row))(*tensors)
    size = tensors[0].numel()
    for index in range(0, size, 4):
        basis = torch.zeros(size, dtype=torch.float64)
        basis[index] = 1
        expected = gradients(row, tensors, basis.reshape(tensors[0].shape))
        for block, rule in zip(jacobian, expected, strict=True):
            torch.testing.assert_close(block.reshape(size, *rule.shape)[index], rule)


@each(FLOWING)
def test_grad_of_grad(row):
    tensors = row.tensors()

    def loss(x):
        return (row.call(x, *tensors[1:]) ** 3).sum() + (x**2).sum()

    def autograd_twice(x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)[0]

    got = grad(lambda x: (grad(loss)(x) ** 2).sum())(tensors[0])
    torch.testing.assert_close(got, autograd_twice(tensors[0]))


def gradients_or_zero(row, tensors, weight):
    if row in FLOWING:
        return gradients(row, tensors, weight)
    return tuple(torch.zeros_like(tensor) for tensor in tensors)
