"""fairscale: large models on few devices."""

from benchmarks.wild._case import Published, randn

PACKAGE = "fairscale"
CASES = [
    Published("fairscale.nn.pipe.dependency:Fork", lambda g: (randn(g, 3, 4),)),
]
