"""Run a campaign alone: ``python -m tests.tensor.hidden --answers 20000 --seed 1``."""

import argparse
import sys
import time

from tests.tensor.hidden.campaign import run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--answers", type=int, default=2000)
parser.add_argument("--seed", default="1")
parser.add_argument("--compiled", type=float, default=0.01)
parser.add_argument("--scripts", type=int, default=3, help="how many failures are shown as scripts")
options = parser.parse_args()
started = time.time()
counts = run(options.answers, options.seed, compiled=options.compiled)
print(counts.report())
for failure in counts.failures:
    print(failure)
for failure in counts.failures[: options.scripts]:
    print(f"\n# {failure}\n{failure.script()}")
print(f"{time.time() - started:.0f} s")
sys.exit(bool(counts.failures))
