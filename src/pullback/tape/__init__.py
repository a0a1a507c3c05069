"""The contract over any value: numbers, texts, lists, dicts, and tensors where torch is."""

from pullback.tape import graph
from pullback.tape._arithmetic import cos, exp, log, sin, sqrt, tanh
from pullback.tape._concurrency import at, concurrency, place
from pullback.tape._definition import once_differentiable
from pullback.tape._feedback import Feedback, Origin
from pullback.tape._forward_mode import jvp, vjp
from pullback.tape._function import Function
from pullback.tape._mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from pullback.tape._registry import Space, register_space, space_of
from pullback.tape._spaces import stack
from pullback.tape._variable import Variable
from pullback.tape._verbs import abackward, backward, grad
from pullback.tape._vmap import vmap

__all__ = [
    "Feedback",
    "Function",
    "Origin",
    "Space",
    "Variable",
    "abackward",
    "at",
    "backward",
    "concurrency",
    "cos",
    "enable_grad",
    "exp",
    "grad",
    "graph",
    "is_grad_enabled",
    "jvp",
    "log",
    "no_grad",
    "once_differentiable",
    "place",
    "register_space",
    "set_grad_enabled",
    "sin",
    "space_of",
    "sqrt",
    "stack",
    "tanh",
    "vjp",
    "vmap",
]
__dir__ = __all__.copy  # completion offers these names, and no module inside
