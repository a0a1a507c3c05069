"""The operations as modules."""

from typing import Any

from pullback.compat.afnio.autodiff import basic_ops, evaluator, lm_ops
from pullback.compat.afnio.cognitive.modules.module import Module

__all__ = [
    "Add",
    "ChatCompletion",
    "DeterministicEvaluator",
    "ExactMatchEvaluator",
    "LMJudgeEvaluator",
    "Split",
    "Sum",
]


class Add(Module):
    """The sum of two Variables."""

    def forward(self, x: Any, y: Any) -> Any:
        """Add."""
        return basic_ops.Add.apply(x, y)


class Sum(Module):
    """The sum of Variables."""

    def forward(self, x: Any) -> Any:
        """Sum."""
        return basic_ops.Sum.apply(x)


class Split(Module):
    """The parts of a text."""

    def forward(self, x: Any, sep: Any = None, maxsplit: Any = -1) -> Any:
        """Split."""
        return basic_ops.Split.apply(x, sep, maxsplit)


class ChatCompletion(Module):
    """A call of a model."""

    def forward(
        self, forward_model_client: Any, messages: Any, inputs: Any = None, **completion_args: Any
    ) -> Any:
        """Ask."""
        return lm_ops.ChatCompletion.apply(
            forward_model_client, messages, inputs, **completion_args
        )


class DeterministicEvaluator(Module):
    """Scores by a function."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate."""
        return evaluator.DeterministicEvaluator.apply(*args, **kwargs)


class ExactMatchEvaluator(Module):
    """Scores 1 where a prediction is its target."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate."""
        return evaluator.ExactMatchEvaluator.apply(*args, **kwargs)


class LMJudgeEvaluator(Module):
    """A model scores, and explains."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate."""
        return evaluator.LMJudgeEvaluator.apply(*args, **kwargs)
