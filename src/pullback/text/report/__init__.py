"""What a run did, to look at: its calls, what they cost, and its graphs."""

from pullback.text.report._page import render_run
from pullback.text.report._summary import ModelSummary, RunSummary, summarise

__all__ = ["ModelSummary", "RunSummary", "render_run", "summarise"]
