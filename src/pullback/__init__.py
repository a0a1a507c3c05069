"""Define how change flows back through an operation once; run it every way; prove it right.

The names of this module are imported when they are first used, so that ``import pullback`` is
cheap and works without torch:

- `Function`, `custom_vjp`: write a differentiable function once;
- `complete`, `completed`: give somebody else's Function the transforms it lacks;
- `check`: test any Function against the whole contract, giving a `Report`;
- `verify`: test whether a kernel computes what its reference computes;
- `Case`: offer cases of your own package to the checker;
- `tape`: the same contract over numbers, texts, lists and mappings, without torch;
- `text`: language models, and what is made of their answers, on the tape;
- `gradients`, `tracking`, `trajectory`: functions that are ready to use;
- `errors`: the exceptions, one tree.
"""

import importlib as _importlib
import typing as _typing
from typing import Any as _Any

from pullback import errors
from pullback.errors import PullbackError
from pullback.internal._extras import require_tensor as _require_tensor

if _typing.TYPE_CHECKING:
    __version__: str
    from pullback import (
        compat,
        conformance,
        gradients,
        recording,
        report,
        tape,
        tensor,
        text,
        tracking,
        trajectory,
        verification,
    )
    from pullback.conformance import check
    from pullback.report import Report
    from pullback.tensor import (
        Case,
        Function,
        complete,
        completed,
        custom_vjp,
    )
    from pullback.verification import verify

__all__ = [
    "Case",
    "Function",
    "PullbackError",
    "Report",
    "check",
    "compat",
    "complete",
    "completed",
    "conformance",
    "custom_vjp",
    "errors",
    "gradients",
    "recording",
    "report",
    "tape",
    "tensor",
    "text",
    "tracking",
    "trajectory",
    "verification",
    "verify",
]

_HOMES = {
    "Case": "tensor",
    "Function": "tensor",
    "Report": "report",
    "check": "conformance",
    "complete": "tensor",
    "completed": "tensor",
    "custom_vjp": "tensor",
    "verify": "verification",
}
_ROOMS = (
    "compat",
    "conformance",
    "gradients",
    "recording",
    "report",
    "tape",
    "tensor",
    "text",
    "tracking",
    "trajectory",
    "verification",
)
_WITHOUT_TORCH = ("compat", "report", "tape", "text")


if not _typing.TYPE_CHECKING:  # to a type checker a module that answers any name has every name

    def __getattr__(name: str) -> _Any:
        if name == "__version__":
            from importlib.metadata import version  # takes longer than all of this file

            return version("pullback")
        if name not in _HOMES and name not in _ROOMS:
            raise AttributeError(f"module 'pullback' has no attribute {name!r}")
        home = _HOMES.get(name, name)
        if home not in _WITHOUT_TORCH:
            _require_tensor(f"pullback.{name}")
        room = _importlib.import_module(f"pullback.{home}")
        value = getattr(room, name) if name in _HOMES else room
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """What completion offers: the names of `__all__`, and no module that happens to be loaded."""
    return [*__all__, *(name for name in globals() if name.startswith("__")), "__version__"]
