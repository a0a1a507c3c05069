"""Progress: a line a step, with what the run has cost so far."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from pullback.text.lm import current_run

__all__ = ["Progress"]


class Progress:
    """Shows lines on standard error, each with calls, tokens and dollars.

    Arguments:
        shown: whether anything is shown.
        clients: models with a ``usage`` (a `pullback.text.lm.Usage`) or ``calls``; the run under
            way if there are none.
    """

    def __init__(self, shown: bool, clients: Iterable[Any] = ()) -> None:
        self.clients = tuple(clients)
        self._console = Console(stderr=True, highlight=False, emoji=False) if shown else None

    def show(self, line: str) -> None:
        """Show a line."""
        if self._console is not None:
            self._console.print(f"{line}{self.cost()}", markup=False)

    def cost(self) -> str:
        """What the clients have used, in words."""
        run = current_run()
        if not self.clients and run is not None:
            return f" [{run.describe()}]"
        parts = []
        calls = [
            each.calls for each in self.clients if isinstance(getattr(each, "calls", None), int)
        ]
        if calls:
            parts.append(f"{sum(calls)} calls")
        used = [
            each.usage for each in self.clients if hasattr(getattr(each, "usage", None), "tokens")
        ]
        if used:
            parts.append(f"{sum(each.tokens for each in used)} tokens")
            known = [each.cost for each in used if each.cost is not None]
            parts.append(f"${sum(known):.4f}" if len(known) == len(used) else "cost unknown")
        return f" [{', '.join(parts)}]" if parts else ""
