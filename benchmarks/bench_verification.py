"""What `pullback.verify` catches beside the checks in common use, and what each accuses wrongly.

The kernels are those of `tests/verification`: wrong ones of many kinds, and right ones in four
dtypes. The checks in use, each as it is published:

- `allclose`: one random input, `torch.allclose` with its defaults (1e-5 and 1e-8);
- `allclose 1e-2`: the same with both tolerances 1e-2;
- KernelBench (`kernelbench/eval.py`, 2026): five random inputs of one shape, without gradients, the
  reference before the kernel on the same tensors, both tolerances 1e-4 in float32 and 1e-2 in half
  precision (its first version: 1e-2 in all);
- `gradcheck`: torch's, in float64, of outputs that are compared at 1e-4 first.
"""

import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.verification.bases import BASES, Base
from tests.verification.kernels import DTYPES, FORBIDDEN, RIGHT, WRONG

from pullback import verify
from pullback.conformance import guarded, unpatched

RESULTS = Path(__file__).parent / "results" / "verification.csv"
Kernel = Callable[..., Any]


def close(
    kernel: Kernel, base: Base, dtype: torch.dtype, tolerance: tuple[float, float], draws: int
) -> bool:
    """Whether outputs agree at random inputs of one shape."""
    with torch.no_grad():
        for seed in range(draws):
            torch.manual_seed(seed)
            inputs = base.make(dtype)
            expected = base.reference(*inputs)
            try:
                got = kernel(*inputs)
            except RuntimeError:
                return False
            if got.shape != expected.shape or got.dtype != expected.dtype:
                return False
            if not torch.allclose(expected, got, rtol=tolerance[0], atol=tolerance[1]):
                return False
    return True


def kernelbench(kernel: Kernel, base: Base, dtype: torch.dtype) -> bool:
    """The check of KernelBench."""
    tolerance = 1e-2 if torch.finfo(dtype).bits == 16 else 1e-4
    return close(kernel, base, dtype, (tolerance, tolerance), 5)


def gradcheck(kernel: Kernel, base: Base, dtype: torch.dtype) -> bool:
    """Outputs at one input, and torch's test of the gradient."""
    if not close(kernel, base, dtype, (1e-4, 1e-4), 1):
        return False
    inputs = tuple(x.double().requires_grad_() for x in base.make(dtype))
    try:
        return torch.autograd.gradcheck(kernel, inputs, fast_mode=True)
    except RuntimeError:
        return False


def ours(kernel: Kernel, base: Base, dtype: torch.dtype) -> bool:
    """`pullback.verify`."""
    torch.manual_seed(0)
    inputs = base.make(dtype)
    return verify(kernel, base.reference, inputs, forbid=FORBIDDEN, isolate=False).ok


CHECKS: dict[str, Callable[[Kernel, Base, torch.dtype], bool]] = {
    "allclose": lambda kernel, base, dtype: close(kernel, base, dtype, (1e-5, 1e-8), 1),
    "allclose 1e-2": lambda kernel, base, dtype: close(kernel, base, dtype, (1e-2, 1e-2), 1),
    "KernelBench": kernelbench,
    "gradcheck": gradcheck,
    "verify": ours,
}


def passed(check: str, kernel: Kernel, base: Base, dtype: torch.dtype) -> bool:
    """What a check says of a kernel that nobody has called before; what it changes is put back."""
    with unpatched(), guarded():
        return CHECKS[check](kernel, base, dtype)


def measure() -> list[dict[str, Any]]:
    """For each kind of kernel, how many there are and how many each check lets pass."""
    rows: list[dict[str, Any]] = []
    for kind, (fault, bases) in WRONG.items():
        made = [(fault, BASES[name], torch.float32) for name in bases]
        rows.append({"kind": kind, "wrong": "yes", "kernels": len(made), **_counts(made)})
    for kind, maker in RIGHT.items():
        made = [(maker, base, dtype) for base in BASES.values() for dtype in DTYPES]
        rows.append({"kind": kind, "wrong": "no", "kernels": len(made), **_counts(made)})
    return rows


def _counts(made: list[tuple[Any, Base, torch.dtype]]) -> dict[str, Any]:
    """How many each check lets pass, and the most seconds of work that it took for one."""
    found: dict[str, Any] = {}
    longest = 0.0
    for check in CHECKS:
        found[check] = 0
        for fault, base, dtype in made:
            kernel, started = fault(base), time.process_time()
            found[check] += passed(check, kernel, base, dtype)
            longest = max(longest, time.process_time() - started)
    return {**found, "longest": f"{longest:.1f}"}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    started = time.perf_counter()
    rows = measure()
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for wrong, word in (("yes", "caught"), ("no", "accused")):
        chosen = [row for row in rows if row["wrong"] == wrong]
        total = sum(row["kernels"] for row in chosen)
        counts = {name: total - sum(row[name] for row in chosen) for name in CHECKS}
        print(f"of {total}, {word}: {counts}")
    longest = max(float(row["longest"]) for row in rows)
    print(f"{longest} s of work at most for a kernel, {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
