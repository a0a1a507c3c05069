"""What a run did, to look at: its calls, what they cost, and its graphs."""

from pullback.text.lm._completion import ModelSummary, RunSummary, summarise
from pullback.text.report._page import render_run

__all__ = ["ModelSummary", "RunSummary", "render_run", "summarise"]
