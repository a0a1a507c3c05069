"""The Cholesky factor of a banded matrix in decimals, for matrices that float64 cannot factorise.

A matrix of squared k-th differences of n samples has a condition of about n^(2k), so that float64
loses all digits of its factor at a few hundred samples. The factor itself has the root of that
condition: rounded once, from enough digits, it solves with far more of them.

Source: Golub and Van Loan, Matrix Computations, section 4.3.5.
"""

from collections.abc import Sequence
from decimal import Decimal, localcontext

__all__ = ["DIGITS", "decimal_factor", "decimal_solve"]

# A million samples and third differences lose 40 of them.
DIGITS = 80


def decimal_factor(band: Sequence[Sequence[Decimal]]) -> list[list[Decimal]]:
    """The lower factor of a positive definite matrix: ``band[i][d]`` is its entry ``(i, i - d)``.

    Entries that lie outside of the matrix (``d > i``) are zero.
    """
    width, factor = len(band[0]) - 1, list[list[Decimal]]()
    with localcontext(prec=DIGITS):
        for i, given in enumerate(band):
            row = list(given)
            for d in range(min(i, width), -1, -1):
                above = factor[i - d] if d else row
                for m in range(d + 1, min(i, width) + 1):
                    row[d] -= row[m] * above[m - d]
                row[d] = row[d] / above[0] if d else row[0].sqrt()
            factor.append(row)
    return factor


def decimal_solve(factor: Sequence[Sequence[Decimal]], right: Sequence[Decimal]) -> list[Decimal]:
    """Solve ``L L' x = b``."""
    size, width, x = len(factor), len(factor[0]) - 1, list(right)
    with localcontext(prec=DIGITS):
        for i in range(size):
            for d in range(1, min(i, width) + 1):
                x[i] -= factor[i][d] * x[i - d]
            x[i] /= factor[i][0]
        for i in reversed(range(size)):
            x[i] /= factor[i][0]
            for d in range(1, min(i, width) + 1):
                x[i - d] -= factor[i][d] * x[i]
    return x
