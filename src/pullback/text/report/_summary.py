"""What a run cost, counted from its journal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pullback.text.lm import Call, Usage

__all__ = ["ModelSummary", "RunSummary", "summarise"]


@dataclass
class ModelSummary:
    """What the calls of one model used.

    Arguments:
        model: its name.
        calls: answers that arrived.
        in_doubt: calls without an answer, which may have been billed.
        usage: tokens, and cost where every price was known.
        unpriced: answers of unknown cost.
    """

    model: str
    calls: int = 0
    in_doubt: int = 0
    usage: Usage = field(default_factory=lambda: Usage(cost=0.0))
    unpriced: int = 0


@dataclass
class RunSummary(ModelSummary):
    """What all calls of a run used, and each model's part of it."""

    models: list[ModelSummary] = field(default_factory=list)

    @property
    def cost(self) -> str:
        """The cost in words, which say where a part of it is not known."""
        text = f"${self.usage.cost or 0.0:.6f}"
        return f"{text} and {self.unpriced} calls of unknown price" if self.unpriced else text


def summarise(calls: Sequence[Call]) -> RunSummary:
    """Count what calls of a journal used, in all and by model."""
    models: dict[str, ModelSummary] = {}
    whole = RunSummary("")
    for call in calls:
        for part in (whole, models.setdefault(call.model, ModelSummary(call.model))):
            if call.answer is None:
                part.in_doubt += 1
                continue
            usage = call.answer.usage
            part.calls += 1
            part.unpriced += usage.cost is None
            known = Usage(
                usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost or 0.0
            )
            part.usage += known
    whole.models = list(models.values())
    return whole
