"""`Locator`: the one name of a Function or callable, by which another process finds it.

This file imports neither torch nor pullback: it is also loaded by path into programs that are
recorded, before they import anything.
"""

import dataclasses
import functools
import importlib
import operator
import os
import sys
from typing import Any

__all__ = ["SHIM_PREFIX", "Locator"]

# Modules that stand for a script whose definitions were taken out of it without running it.
SHIM_PREFIX = "_pullback_shim_"


@dataclasses.dataclass(frozen=True)
class Locator:
    """Where a Function or another callable is defined.

    Arguments:
        module: the name of its module; ``"__main__"`` for a script, which ``file`` names.
        qualname: its qualified name in the module.
        file: the file of the module, absolute, or an empty text.
        completed: whether it is what `pullback.complete` made of the Function of that name.

    Example:
        >>> import collections
        >>> Locator.of(collections.Counter.update).name
        'collections:Counter.update'
    """

    module: str
    qualname: str
    file: str = ""
    completed: bool = False

    @classmethod
    def of(cls, target: Any) -> "Locator":
        """Name an object; `names` says whether the name leads back to it.

        Arguments:
            target: a class, function or other callable; of a partial, the function.
        """
        while isinstance(target, functools.partial):
            target = target.func
        if type(target).__name__ == "OpOverload":  # of no module: the name is torch's own
            return cls("torch", f"ops.{str(target).removeprefix('torch.ops.')}")
        target = _decorated(target)
        name = getattr(target, "__module__", None) or type(target).__module__
        home = sys.modules.get(name)
        qualname = getattr(target, "__qualname__", None) or type(target).__qualname__
        short = getattr(target, "__name__", None)
        if short and getattr(home, short, None) is target:
            qualname = short  # torch.sin calls itself torch:_VariableFunctionsClass.sin
        completed = isinstance(getattr(target, "__dict__", {}).get("__wrapped__"), type)
        file = getattr(home, "__file__", None)
        spec = getattr(home, "__spec__", None)
        if name.startswith(SHIM_PREFIX):
            name = "__main__"
        elif name == "__main__" and spec is not None and not spec.name.endswith("__main__"):
            name = spec.name  # run with `python -m`
        return cls(name, qualname, os.path.abspath(file) if file else "", completed)

    def names(self, target: Any) -> bool:
        """Whether ``target`` stands at the top level of its module, under this very name."""
        name = getattr(_decorated(target), "__module__", None) or self.module
        name = self.module if self.module == "torch" else name
        try:
            home = sys.modules.get(name) or importlib.import_module(name)
            return operator.attrgetter(self.qualname)(home) is target
        except (ImportError, AttributeError):
            return False

    @classmethod
    def parse(cls, text: str) -> "Locator":
        """Read a name as people write it: ``package.module:Name`` or ``folder/script.py:Name``.

        Raises:
            ValueError: it is neither.

        Example:
            >>> Locator.parse("package.module:Outer.Inner")
            Locator(module='package.module', qualname='Outer.Inner', file='', completed=False)
        """
        home, _, qualname = text.rpartition(":")
        if not home or not all(part.isidentifier() for part in qualname.split(".")):
            raise ValueError(f"{text!r} names no Function")
        if home.endswith(".py"):
            return cls("__main__", qualname, os.path.abspath(home))
        return cls(home, qualname)

    @classmethod
    def from_data(cls, data: Any) -> "Locator":
        """Read what `to_data` wrote.

        Raises:
            TypeError: the data has another form.
        """
        found = cls(**data)
        for field in dataclasses.fields(cls):
            value = getattr(found, field.name)
            if type(value) is not field.type:
                raise TypeError(f"{field.name} is a {type(value).__name__}")
            if isinstance(value, str) and not value.isprintable():  # names are shown on terminals
                raise TypeError(f"{field.name} holds control characters")
        return found

    def to_data(self) -> dict[str, Any]:
        """The locator as plain data, for a file or another process."""
        return dataclasses.asdict(self)

    @property
    def name(self) -> str:
        """``"package.module:Name"``; the script's file in place of ``__main__``."""
        suffix = " (completed)" if self.completed else ""
        return f"{self.script or self.module}:{self.qualname}{suffix}"

    @property
    def script(self) -> str:
        """The script that defines it, or an empty text where that is a module or a prompt."""
        return self.file if self.module == "__main__" else ""


def _decorated(target: Any) -> Any:
    """The function that `torch.library.custom_op` decorated, or the target itself."""
    return getattr(target, "_init_fn", target) if hasattr(target, "_opoverload") else target
