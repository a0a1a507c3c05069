"""Wrong kernels are caught, right ones are not accused."""

import pytest
import torch

from tests.verification.bases import BASES
from tests.verification.kernels import DTYPES, FORBIDDEN, RIGHT, WRONG

from pullback import verify

WRONG_CASES = [(kind, base) for kind, (_, bases) in WRONG.items() for base in bases]
RIGHT_CASES = [(kind, base, dtype) for kind in RIGHT for base in BASES for dtype in DTYPES]


def judge(kernel, base, dtype=torch.float32):
    torch.manual_seed(0)
    return verify(kernel, base.reference, base.make(dtype), forbid=FORBIDDEN, isolate=False)


@pytest.mark.parametrize(("kind", "base"), WRONG_CASES)
def test_what_is_wrong_is_caught(kind: str, base: str) -> None:
    fault, _ = WRONG[kind]
    report = judge(fault(BASES[base]), BASES[base])
    assert not report.ok, str(report)


@pytest.mark.parametrize(("kind", "base", "dtype"), RIGHT_CASES)
def test_what_is_right_is_not_accused(kind: str, base: str, dtype: torch.dtype) -> None:
    report = judge(RIGHT[kind](BASES[base]), BASES[base], dtype)
    assert report.ok, str(report)
