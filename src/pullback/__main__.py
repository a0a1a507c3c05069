"""``python -m pullback``: the command, where no console script is installed."""

import os
import sys

from pullback.cli import main

if __name__ == "__main__":
    # As for the console script: no recording finds a module here. What the user names still is.
    if sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]
    sys.exit(main())
