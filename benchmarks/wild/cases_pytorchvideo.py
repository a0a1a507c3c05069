"""pytorchvideo: a memory-efficient swish."""

from benchmarks.wild._case import Published, randn

PACKAGE = "pytorchvideo"
CASES = [
    Published(
        "pytorchvideo.layers.swish:SwishFunction",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    )
]
