"""Language-model operations on the tape, and the models that they ask.

An operation is a Function of texts: `chat`, `judge`, `map_python`, and those that put texts
together. Who says what its inputs should change is a `Critic`; it is sent one of the `prompts`.
Of operations a `Module` is made, which `optim` improves, `train` measures and `report` shows; `lm`
has the models.
"""

from pullback.text import (
    _chat,
    _critic,
    _evaluation,
    _failure,
    _joining,
    _module,
    _prompts,
    _python,
    lm,
    optim,
    train,
)
from pullback.text._chat import *
from pullback.text._critic import *
from pullback.text._evaluation import *
from pullback.text._failure import *
from pullback.text._joining import *
from pullback.text._module import *
from pullback.text._prompts import *
from pullback.text._python import *

__all__ = ["lm", "optim", "train"]
_parts = (_chat, _critic, _evaluation, _failure, _joining, _module, _prompts, _python)
__all__ = sorted([*__all__, *(name for part in _parts for name in part.__all__)])
__dir__ = __all__.copy  # completion offers these names, and no module inside
