"""causal_conv1d: counted; nothing of it runs without a GPU."""

from benchmarks.wild._case import Published

PACKAGE = "causal-conv1d"
FOLDER = "causal_conv1d"
REASONS = [("causal_conv1d", "needs its CUDA extension, made for a GPU")]
CASES: list[Published] = []
