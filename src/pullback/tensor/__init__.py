"""The contract over torch: `Function`, and what completes third-party ones."""

from pullback.tensor._case import Case, Intent
from pullback.tensor._function import Function

__all__ = ["Case", "Function", "Intent"]
