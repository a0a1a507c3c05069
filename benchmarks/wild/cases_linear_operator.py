"""linear_operator: structured linear algebra."""

import torch

from benchmarks.wild._case import Published, randn

PACKAGE = "linear_operator"
_MODULE = "linear_operator.functions"


def _operator(generator):
    from linear_operator import to_linear_operator

    root = randn(generator, 3, 3, grad=False)
    matrix = (root @ root.mT + 2 * torch.eye(3, dtype=torch.float64)).requires_grad_()
    return to_linear_operator(matrix).representation_tree(), matrix


def _with_right(generator, *between):
    tree, matrix = _operator(generator)
    return tree, *between, randn(generator, 3, 2), matrix


def _pivoted(generator):
    tree, matrix = _operator(generator)
    return tree, 2, 1e-6, matrix


def _symmetric(apply, *arguments):
    """As it is called: what stays symmetric, where one triangle alone is read."""
    *others, matrix = arguments
    return apply(*others, (matrix + matrix.mT) / 2)


CASES = [
    Published(f"{_MODULE}._matmul:Matmul", _with_right),
    Published(f"{_MODULE}._solve:Solve", lambda g: _with_right(g, False), _symmetric),
    Published(f"{_MODULE}._inv_quad:InvQuad", _with_right, _symmetric),
    Published(
        f"{_MODULE}._pivoted_cholesky:PivotedCholesky",
        _pivoted,
    ),
]
