"""Where numba is not installed: plain torch measures, to the same figures, and says so."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["numba"] = None
import torch
from pullback.errors import MissingExtraError
from pullback.tracking import Record, Statistics, Tracker, track

x = torch.tensor([[1.5, 0.0], [float("inf"), -3.0]])
assert abs(Statistics.of(x).scale - (11.25 / 3) ** 0.5) < 1e-12

model = torch.nn.Linear(2, 3)
with Tracker(model) as tracker:
    model(torch.ones(4, 2)).sum().backward()
assert tracker.backends_used == {"cpu": "reference"}, tracker.backends_used
assert tracker.total("(root)", "backward").count == 12

try:
    track(x, Record("x", backend="cpu"))
except MissingExtraError as error:
    assert "pip install numba" in str(error)
else:
    raise SystemExit("a kernel that is not there was not refused")
"""


def test_plain_torch_measures() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
