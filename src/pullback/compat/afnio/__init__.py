"""afnio's names over the tape and `pullback.text`: its documented behaviour, running locally.

There is no account and no service: Functions run here, and the models are those that you name.
"""

from pullback.compat.afnio import autodiff, cognitive, models, optim, tellurio, trainer, utils
from pullback.compat.afnio._client import get_backward_model_client, set_backward_model_client
from pullback.compat.afnio._variable import Variable
from pullback.compat.afnio.autodiff import is_grad_enabled, no_grad, set_grad_enabled
from pullback.compat.afnio.autodiff.graph import GradientEdge, Node
from pullback.compat.afnio.cognitive import functional
from pullback.compat.afnio.serialization import load, save

__all__ = [
    "GradientEdge",
    "Node",
    "Variable",
    "autodiff",
    "cognitive",
    "functional",
    "get_backward_model_client",
    "is_grad_enabled",
    "load",
    "models",
    "no_grad",
    "optim",
    "save",
    "set_backward_model_client",
    "set_grad_enabled",
    "tellurio",
    "trainer",
    "utils",
]
