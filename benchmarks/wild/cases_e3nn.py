"""e3nn: equivariant networks."""

from benchmarks.wild._case import Published, randn

PACKAGE = "e3nn"
CASES = [
    Published(
        "e3nn.math._soft_unit_step:_SoftUnitStep",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    )
]
