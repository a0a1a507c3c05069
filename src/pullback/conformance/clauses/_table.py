"""The one ordered table of clauses."""

from pullback.conformance._clause import Clause
from pullback.conformance.clauses.derivative import derivative
from pullback.conformance.clauses.linear import linear
from pullback.conformance.clauses.second import double, once

__all__ = ["CLAUSES"]

CLAUSES: tuple[Clause, ...] = (
    Clause("derivative", "backward is the derivative of forward", derivative),
    Clause("linear", "backward is linear in the cotangent, zero maps to zero", linear),
    Clause("double", "the second derivative is right, or refused", double),
    Clause("once", "once_differentiable is loud under autograd and under torch.func", once),
)
