"""kymatio: scattering transforms."""

from benchmarks.wild._case import Published, randn

PACKAGE = "kymatio"
CASES = [
    Published(
        "kymatio.backend.torch_backend:ModulusStable",
        lambda g: (randn(g, 3, 4, 2),),
        command="torch.randn(3, 4, 2, dtype=torch.float64)",
    )
]
