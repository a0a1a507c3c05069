"""Language-model operations on the tape, and the models that they ask.

An operation is a Function of texts: `chat`, `judge`, `map_python`, and those that put texts
together. Who says what its inputs should change is a `Critic`; it is sent one of the `prompts`.
Of operations a `Module` is made, which `optim` improves, `train` measures and `report` shows; `lm`
has the models.
"""

from pullback.text import functional, lm, optim, train
from pullback.text._chat import ChatModule, chat
from pullback.text._critic import (
    Blame,
    Critic,
    ModelCritic,
    Relay,
    Review,
    Rule,
    RuleCritic,
    blame,
    use_critic,
)
from pullback.text._evaluation import Evaluation, deterministic, exact_match, judge
from pullback.text._failure import Failure, Failures, tolerate
from pullback.text._joining import concat, format, join, select, split, sum
from pullback.text._module import Module, Parameter, TemplateParameter
from pullback.text._prompts import Template, prompt, use_prompts
from pullback.text._python import StepError, invoke, map_python

__all__ = [
    "Blame",
    "ChatModule",
    "Critic",
    "Evaluation",
    "Failure",
    "Failures",
    "ModelCritic",
    "Module",
    "Parameter",
    "Relay",
    "Review",
    "Rule",
    "RuleCritic",
    "StepError",
    "Template",
    "TemplateParameter",
    "blame",
    "chat",
    "concat",
    "deterministic",
    "exact_match",
    "format",
    "functional",
    "invoke",
    "join",
    "judge",
    "lm",
    "map_python",
    "optim",
    "prompt",
    "select",
    "split",
    "sum",
    "tolerate",
    "train",
    "use_critic",
    "use_prompts",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
