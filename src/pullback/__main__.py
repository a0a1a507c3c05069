"""``python -m pullback``: the command, where no console script is installed."""

import sys

from pullback.cli import main

sys.exit(main())
