"""`python -m tests.conformance.straight_through`: count false verdicts on straight-through code.

Each family of `tests.specimens.estimators` is checked at many seeds, at sizes drawn between 1 and
10,000 (as many small as large ones), in float32 and float64, by the clauses that a step in
forward could mislead. A bad verdict on an estimator is false; so is a clean one on a pretender
whose error is large where it was drawn.
"""

import argparse
import random
import sys
import time
from collections import Counter

import torch
from tests.specimens.estimators import ESTIMATORS, PRETENDERS

from pullback.conformance import check

__all__ = ["draw", "is_judgeable", "misjudged"]

# The clauses that steps have misled, and those that are slower and asked of every fifth seed.
CLAUSES = ("derivative", "linear", "non-differentiable", "structure")
MORE = (*CLAUSES, "form", "layout", "needs-input-grad", "hooks", "dtype")
LARGEST = 10_000


def draw(seed: int) -> tuple[int, torch.dtype]:
    """The size and dtype of a seed; every size of a magnitude is as likely as every other."""
    source = random.Random(seed)
    size = 1 if seed % 25 == 0 else LARGEST if seed % 25 == 1 else 0
    size = size or round(LARGEST ** source.random())
    return size, source.choice([torch.float32, torch.float64])


def is_judgeable(name: str, size: int, dtype: torch.dtype, seed: int) -> bool:
    """Whether a pretender moves at all at its point: where it is saturated no error shows."""
    function, inputs = PRETENDERS[name](size, dtype, seed)
    if not hasattr(function, "rule"):
        return bool(inputs[0].round().ne(0).any())
    x = inputs[0].detach().double().requires_grad_()
    y = function.rule(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    return bool((slope * x).abs().max() > 1e-3 * y.abs().max())


def misjudged(name: str, size: int, dtype: torch.dtype, seed: int) -> str | None:
    """What is false in the verdicts on a family, ``""`` if nothing, ``None`` if none is due."""
    families = {**ESTIMATORS, **PRETENDERS}
    function, inputs = families[name](size, dtype, seed)
    if name in ESTIMATORS:
        clauses = CLAUSES if seed % 5 else MORE
        report = check(function, *inputs, seed=seed, clauses=clauses)
        return "\n".join(map(str, report.problems))
    if not is_judgeable(name, size, dtype, seed):
        return None
    report = check(function, *inputs, seed=seed, clauses="derivative")
    return str(report) if report.ok else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="for each family")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--only", default="", help="families whose name starts so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    checks, false = Counter(), Counter()
    names = [name for name in [*ESTIMATORS, *PRETENDERS] if name.startswith(options.only)]
    for name in names:
        kind = "estimators" if name in ESTIMATORS else "pretenders"
        for seed in range(options.seed, options.seed + options.seeds):
            size, dtype = draw(seed)
            told = misjudged(name, size, dtype, seed)
            checks[kind] += told is not None
            if told:
                false[kind] += 1
                print(f"FALSE: {name}, size {size}, {dtype}, seed {seed}\n{told}", flush=True)
    for kind, count in checks.items():
        print(f"{kind}: {false[kind]} false of {count} checks")
    print(
        f"{len(names)} families, {options.seeds} seeds each, {time.perf_counter() - started:.0f} s"
    )
    sys.exit(bool(false))


if __name__ == "__main__":
    main()
