"""``python -m pullback``: the command, where no console script is installed."""

import sys

from pullback.cli import main

if __name__ == "__main__":
    sys.exit(main())
