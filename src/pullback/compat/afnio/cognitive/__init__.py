"""Modules, parameters, and the operations as modules."""

from pullback.compat.afnio.cognitive import functional as functional
from pullback.compat.afnio.cognitive import modules, parameter
from pullback.compat.afnio.cognitive.functional import *
from pullback.compat.afnio.cognitive.modules import *
from pullback.compat.afnio.cognitive.parameter import *

__all__ = sorted(
    [*functional.__all__, *modules.__all__, *parameter.__all__, "functional", "modules"]
)
