"""Transformer Engine: Triton kernels, in its interpreter; the rest asks for its library."""

import sys
import types
from pathlib import Path

from benchmarks.kernels_in_use._interpreter import bare, install
from benchmarks.kernels_in_use._made import labels, r, softmax
from benchmarks.wild._case import Published

PACKAGE = "transformer-engine"
FOLDER = "transformer_engine"
# Where other packages see it, they take its library for installed.
sys.path.append(str(Path(sys.prefix) / "counted"))
install(active=True)
COMPILED = "transformer_engine.pytorch.cpp_extensions"
for _package in ("common", "common.triton", "pytorch", "pytorch.triton", "pytorch.cpp_extensions"):
    if _package == "common":
        bare("transformer_engine")
    bare(f"transformer_engine.{_package}")
# What is asked of them when they are imported, and not by the Functions that run here.
sys.modules[f"{COMPILED}.gemm"] = types.SimpleNamespace(general_gemm=None)
sys.modules["transformer_engine.pytorch.jit"] = types.SimpleNamespace(
    no_torch_dynamo=lambda *_, **__: lambda function: function
)
REASONS = [("transformer_engine", "needs its compiled library, made for a GPU")]
WHERE = "transformer_engine.pytorch.triton.mhc"
CASES = [
    Published("transformer_engine.pytorch.cross_entropy:CrossEntropyFunction",
              lambda g: (r(g, 2, 3, 8), labels(g, 8, 2, 3), 0.1)),
    Published(f"{WHERE}:mHCScaleFusedOp",
              lambda g: (r(g, 3, 32), r(g, 3), r(g, 1, 24), r(g, 3).abs().detach(), 4)),
    Published(f"{WHERE}:mHCSinkhornOp", lambda g: (r(g, 2, 3, 4, 4), 4, True, 3)),
    Published(f"{WHERE}:mHCAggregateOp",
              lambda g: (r(g, 2, 3, 16, 4), softmax(g, 2, 3, 4), 4, False)),
    Published(f"{WHERE}:mHCExpandCombineOp",
              lambda g: (r(g, 2, 3, 16), r(g, 16), r(g, 2, 3, 4), r(g, 2, 3, 16, 4),
                         r(g, 2, 3, 4, 4), 4, False)),
]  # fmt: skip
