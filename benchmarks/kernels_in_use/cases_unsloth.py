"""Unsloth: counted; it refuses to be imported without a GPU, and so do its kernels."""

from benchmarks.wild._case import Published

PACKAGE = "unsloth"
FOLDER = "unsloth"
REASONS = [
    ("unsloth.context_parallel", "needs a group of processes"),
    ("unsloth.models.tp_native", "needs a group of processes"),
    ("unsloth.utils.ulysses", "needs a group of processes"),
    ("unsloth.import_fixes", "made inside of a function that mends another package"),
    ("unsloth", "refuses to be imported without a GPU"),
]
CASES: list[Published] = []
