"""PEFT: plain torch."""

import torch

from benchmarks.kernels_in_use._made import r, unit
from benchmarks.wild._case import Published

PACKAGE = "peft"
FOLDER = "peft"
REASONS = [("peft.tuners.boft", "compiles a CUDA extension when it is first used")]
CASES = [
    Published("peft.tuners.c3a.utils:BlockCircularConvolution",
              lambda g: (r(g, 3, 8), r(g, 2, 2, 4))),
    Published("peft.tuners.loha.layer:HadaWeight",
              lambda g: (r(g, 4, 2), r(g, 2, 5), r(g, 4, 2), r(g, 2, 5), torch.tensor(0.5))),
    Published("peft.tuners.loha.layer:HadaWeightCP",
              lambda g: (r(g, 2, 2, 3, 3), r(g, 2, 4), r(g, 2, 5), r(g, 2, 2, 3, 3), r(g, 2, 4),
                         r(g, 2, 5), torch.tensor(0.5))),
    Published("peft.tuners.lora.velora:VeloraFunction",
              lambda g: (r(g, 3, 8), r(g, 4, 8), r(g, 4), unit(g, 4).detach(), 2, 1.0),
              gradient="surrogate"),
    Published("peft.tuners.randlora.layer:UniqueBaseGrad",
              lambda g: (r(g, 3, 1, 4, grad=False), r(g, 3, 2), r(g, 2, 4))),
]  # fmt: skip
