"""How `pullback.check` judges a Function of the tape, offered as any package may offer it.

The entry point is ``tape`` in the group ``pullback.contracts``: see `pullback.conformance`.
"""

from pullback.tape.conformance._clauses import judge, takes

__all__ = ["judge", "takes"]
__dir__ = __all__.copy  # completion offers these names, and no module inside
