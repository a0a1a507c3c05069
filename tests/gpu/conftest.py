"""What needs a CUDA device: `make gpu` runs it, and where there is none nothing is collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
