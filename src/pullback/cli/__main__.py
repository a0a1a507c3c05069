"""``python -m pullback.cli``, the command where no console script is installed."""

import sys

from pullback.cli._main import main

sys.exit(main())
