"""xFormers: what is not compiled for CUDA."""

from benchmarks.kernels_in_use._made import r
from benchmarks.wild._case import Published

PACKAGE = "xformers"
FOLDER = "xformers"
REASONS = [
    ("xformers.fwbw_overlap", "needs CUDA streams"),
    ("xformers.ops.differentiable_collectives", "needs a group of processes"),
    ("xformers.ops.indexing", "refuses a CPU"),
    ("xformers.ops.fmha", "no attention kernel of it runs on a CPU"),
    ("xformers.ops.unbind:_StackOrNone", "used in the backward of _Unbind alone"),
    ("xformers.ops.sp24", "needs a GPU's sparse tensor cores"),
]
CASES = [
    Published("xformers.ops.unbind:_Unbind", lambda g: (r(g, 3, 4), 0)),
    Published("xformers.ops.swiglu_op:_SwiGLUDecomposedFunc",
              lambda g: (r(g, 3, 8), r(g, 6, 8), r(g, 6), r(g, 6, 8), r(g, 6), r(g, 4, 6),
                         r(g, 4))),
]  # fmt: skip
