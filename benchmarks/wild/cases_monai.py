"""monai: medical imaging."""

from benchmarks.wild._case import Published, randn

PACKAGE = "monai"
CASES = [
    Published(
        "monai.networks.blocks.activation:SwishImplementation",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    ),
    Published(
        "monai.visualize.gradient_based:_AutoGradReLU",
        lambda g: (randn(g, 3, 4),),
        gradient="nonlinear",
        command="torch.randn(3, 4, dtype=torch.float64)",
    ),
]
