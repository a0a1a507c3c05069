"""transformer_engine: counted; nothing of it runs without a GPU."""

import sys
from pathlib import Path

from benchmarks.wild._case import Published

PACKAGE = "transformer-engine"
FOLDER = "transformer_engine"
# Where other packages see it, they take its library for installed.
sys.path.append(str(Path(sys.prefix) / "counted"))
REASONS = [("transformer_engine", "needs its compiled library, made for a GPU")]
CASES: list[Published] = []
