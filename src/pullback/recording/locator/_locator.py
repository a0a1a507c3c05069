"""`Locator`: the one name of a Function or callable, by which another process finds it.

This file imports no torch: a copy of it is imported into programs that are recorded.
"""

import dataclasses
import functools
import operator
import os
import sys
from typing import Any

from pullback.internal._text import in_a_line
from pullback.recording.locator._source import definition

__all__ = ["SHIM_PREFIX", "Locator", "absolute"]

# Modules that stand for a script whose definitions were taken out of it without running it.
SHIM_PREFIX = "_pullback_shim_"
_SPAWNED = "__mp_main__"  # the script again, in a process that `multiprocessing` starts anew


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
        module, qualname, _ = _place(target)
        completed = isinstance(getattr(target, "__dict__", {}).get("__wrapped__"), type)
        return cls.in_module(module, qualname, completed)

    @classmethod
    def in_module(cls, module: str, qualname: str = "", completed: bool = False) -> "Locator":
        """Name what a module of this process holds, or the module itself."""
        home = sys.modules.get(module)
        file, spec = getattr(home, "__file__", None) or "", getattr(home, "__spec__", None)
        if file.startswith("<"):  # of a script that is read from standard input
            file = ""
        if module.startswith(SHIM_PREFIX) or module == _SPAWNED:
            module = "__main__"
        if module == "__main__" and spec is not None and not spec.name.endswith("__main__"):
            module = spec.name  # run with `python -m`
        return cls(module, qualname, absolute(file) if file else "", completed)

    @classmethod
    def at(cls, home: str, qualname: str = "") -> "Locator":
        """What a module, or a script by its path, holds under a name."""
        if home.endswith(".py") or os.path.isabs(home):
            return cls("__main__", qualname, os.path.abspath(home))
        return cls(home, qualname)

    def names(self, target: Any) -> bool:
        """Whether another process finds ``target`` under this very name.

        It stands at the top level of its module; and that is one that Python finds, or a script
        whose source has a statement that makes it.
        """
        module, qualname, found = _place(target)
        other = type(self).in_module(module, qualname)
        if not found or (self.home, self.qualname) != (other.home, other.qualname):
            return False
        if self.script:
            return definition(self.file, qualname.partition(".")[0]) is not None
        top = sys.modules.get(self.module.partition(".")[0])
        return bool(self.file) or getattr(top, "__spec__", None) is not None

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
        return cls.at(home, qualname)

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
        return found

    def to_data(self) -> dict[str, Any]:
        """The locator as plain data, for a file or another process."""
        return dataclasses.asdict(self)

    @property
    def home(self) -> str:
        """The name of the module, or the path of the script; an empty text for a prompt."""
        return self.file if self.module == "__main__" else self.module

    @property
    def name(self) -> str:
        """``"package.module:Name"``; the script's file in place of ``__main__``, fit for a line."""
        suffix = " (completed)" if self.completed else ""
        return in_a_line(f"{self.home or self.module}:{self.qualname}{suffix}")

    @property
    def script(self) -> str:
        """The script that defines it, or an empty text where that is a module or a prompt."""
        return self.file if self.module == "__main__" else ""


def absolute(path: str) -> str:
    """A path from the root; as it is where it begins in a working folder that is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return path


def _place(target: Any) -> tuple[str, str, bool]:
    """The module and name of an object, and whether they lead back to it."""
    if type(target).__name__ == "OpOverload":  # of no module: the name is torch's own
        return "torch", f"ops.{str(target).removeprefix('torch.ops.')}", True
    # The function that `torch.library.custom_op` decorated, or the target itself.
    named = getattr(target, "_init_fn", target) if hasattr(target, "_opoverload") else target
    module = str(getattr(named, "__module__", None) or type(named).__module__)
    qualname = getattr(named, "__qualname__", None) or type(named).__qualname__
    last = qualname.rpartition(".")[2]
    places = [(module, qualname), (module, last)]
    if "torch" in sys.modules:  # what it makes in C says something else than where it is found
        places += [("torch", last), ("torch", f"Tensor.{last}"), ("torch.nn.functional", last)]
    return next(
        ((*place, True) for place in places if _look_up(*place) is target),
        (module, qualname, False),
    )


def _look_up(module: str, qualname: str) -> Any:
    """What stands there; what its module does not hold now, another import would not be either."""
    try:
        return operator.attrgetter(qualname)(sys.modules.get(module))
    except Exception:  # a module may have a __getattr__ of its own, which raises what it likes
        return None
