"""`Call`: one call of a model, as a journal keeps it; and what calls cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pullback.text.lm._account import Spending
from pullback.text.lm._completion import Completion, Usage

__all__ = ["Call", "ModelSummary", "RunSummary", "summarise"]


@dataclass(frozen=True)
class Call:
    """One call of a model.

    Arguments:
        id: its place in the journal.
        digest: of the request and the model's name.
        place: where in the program it was asked.
        occurrence: which of the equal requests at that place it is, from 0; below 0 if it failed
            and is to be asked again.
        model: the model's name.
        request: `Request.to_dict`.
        key: sent as ``Idempotency-Key``.
        begun, ended: seconds since 1970.
        answer: None where none arrived: whether the call was billed is in doubt.
        failure: why the answer could not be used; None if it could.
        fresh: whether the entry was just made, so that it was never sent before.
    """

    id: int
    digest: str
    place: str
    occurrence: int
    model: str
    request: Mapping[str, Any]
    key: str
    begun: float
    ended: float | None = None
    answer: Completion | None = None
    failure: str | None = None
    fresh: bool = False


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

    model: str = ""
    calls: int = 0
    in_doubt: int = 0
    usage: Usage = field(default_factory=lambda: Usage(cost=0.0))
    unpriced: int = 0

    def add(self, call: Call) -> None:
        """Count a call."""
        if call.answer is None:
            self.in_doubt += 1
            return
        usage = call.answer.usage
        self.calls += 1
        self.unpriced += usage.cost is None
        self.usage += replace(usage, cost=usage.cost or 0.0)

    @property
    def spent(self) -> Spending:
        """What of it a budget counts."""
        return Spending(self.calls, self.usage.tokens, self.usage.cost or 0.0)

    @property
    def cost(self) -> str:
        """The cost in words, which say where a part of it is not known."""
        text = f"${self.usage.cost or 0.0:.6f}"
        return f"{text} and {self.unpriced} calls of unknown price" if self.unpriced else text


@dataclass
class RunSummary(ModelSummary):
    """What all calls of a run used, and each model's part of it."""

    models: list[ModelSummary] = field(default_factory=list)


def summarise(calls: Iterable[Call]) -> RunSummary:
    """Count what calls of a journal used, in all and by model."""
    models: dict[str, ModelSummary] = {}
    whole = RunSummary()
    for call in calls:
        whole.add(call)
        models.setdefault(call.model, ModelSummary(call.model)).add(call)
    whole.models = list(models.values())
    return whole
