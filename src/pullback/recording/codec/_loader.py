"""What a recording may load: everything that we recorded ourselves, little of what we were given.

A recording is a file, and a file may come from anybody. Two loaders answer the codec:

- `Loader` trusts: the user has just run the program, or has said ``--trust``.
- `StrictLoader` does not. It loads a subclass of `torch.autograd.Function` or a registered custom
  operator, from a module that this environment can import anyway or from a script that the user
  names. A class of an argument must be a module of `torch.nn`, or stand in the user's own files or
  in the package of the Function; a callable must take tensors only (`torch.sin`), make plain data
  (`float`), or stand in the user's own files: the scripts that are named, and what Python imports
  from their folders. Before anything is imported, the definition is looked up in the source; names
  are then looked up statically, so that no property and no ``__getattr__`` runs.
"""

import ast
import functools
import inspect
import os
import shlex
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from pullback.errors import ArgumentError, RecordingError
from pullback.recording.locator import (
    Locator,
    definition,
    derives_from_function,
    find,
    load_module,
    refuse_lost,
    source_of,
)
from pullback.tensor import complete

__all__ = ["Loader", "StrictLoader"]

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
_MODULES = ("torch", "torch.nn", "torch.nn.functional", "math", "numpy")
_WHERE = "What makes it while it runs is checked where it runs: pullback check -- python ..."
_MEND = "Trust the recording (--trust) only if you know who made it, and how."


class Loader:
    """Loads whatever a recording names.

    Arguments:
        paths: ``sys.path`` of the recorded program, appended to ours.
        flags: the options of ``pullback check`` that load the file of the recording again.

    Attributes:
        options: the keyword arguments that give `Recording.load` the same loader, as source.
    """

    trusts = True
    options = ", trust=True"

    def __init__(self, paths: Sequence[str] = (), flags: Sequence[str] = ("--trust",)) -> None:
        self._paths = paths
        self.flags = tuple(flags)

    def function(self, locator: Locator) -> Any:
        """The Function or operator that was recorded."""
        self._extend_path()
        return find(locator)

    def named(self, home: str, qualname: str, *, is_class: bool = False) -> Any:
        """A function or class among the arguments, or the class of one."""
        return find(Locator.at(home, qualname))

    def module(self, home: str, *, is_code: bool = False) -> types.ModuleType:
        """A module among the arguments, or one that holds the code of an inner function."""
        self._extend_path()
        return load_module(home)

    def method(self, owner: Any, name: str) -> Any:
        """A bound method among the arguments."""
        return getattr(owner, name)

    def _extend_path(self) -> None:
        for folder in self._paths:
            if folder not in sys.path and os.path.exists(folder):
                sys.path.append(folder)


class StrictLoader(Loader):
    """Loads what is safe to load from a file that anybody may have written.

    Arguments:
        scripts: files that the user names; their folders are appended to ``sys.path``.
        package: the top package of the Function, whose plain classes its arguments may have.
    """

    trusts = False

    def __init__(self, scripts: Iterable[str | Path] = (), package: str = "") -> None:
        self._scripts = [os.path.realpath(script) for script in scripts]
        for script in self._scripts:
            if not os.path.isfile(script):
                raise ArgumentError(f"There is no script {script}.", mend="Check the spelling.")
        flags = [word for script in self._scripts for word in ("--script", script)]
        super().__init__([os.path.dirname(script) for script in self._scripts], flags)
        self._extend_path()
        self._package = package
        self._named: dict[str, str] = {}  # a module that is on no path -> the script that it is
        self.options = f", scripts={self._scripts!r}" if self._scripts else ""

    def function(self, locator: Locator) -> Any:
        """The Function or operator that was recorded."""
        refuse_lost(locator)
        home, file, _ = self._resolve(locator.home, locator.file)
        if home in self._scripts:
            self._named[locator.module] = home
        if not file:
            script = shlex.quote(locator.file)
            raise _refused(
                f"{locator.name} is in a module that cannot be imported here.",
                f"It was defined in {script}; if that is yours, name it: --script {script}"
                if locator.file.endswith(".py")
                else None,
            )
        operator = definition(file, locator.qualname)
        if not derives_from_function(file, locator.qualname, locator.module) and not (
            isinstance(operator, ast.FunctionDef) and _is_operator(operator)
        ):
            raise _refused(f"{locator.name} is not defined as a Function in {file}.", _WHERE)
        first = locator.qualname.partition(".")[0]
        found = _static(load_module(home, wanted=first), locator.qualname)
        if not _is_function(found):
            raise _refused(f"{locator.name} is neither a Function nor a custom operator.", _WHERE)
        return complete(found) if locator.completed else found

    def named(self, home: str, qualname: str, *, is_class: bool = False) -> Any:
        """What is safe to call or to make: see the rules of the module."""
        package = home.partition(".")[0]
        found = _static(sys.modules.get(home), qualname)
        if package == "torch":
            of_tensors = id(found) in _tensor_functions() or _is_of_torch(found)
            if _is_of_torch(found, tuple) if is_class else of_tensors:
                return found
        elif home == "builtins" and not is_class and any(found is kind for kind in _PLAIN_TYPES):
            return found
        home, file, own = self._resolve(home)
        if own or (is_class and package == self._package != "torch"):
            defined = definition(file, qualname)
            found = None if defined is None else _static(load_module(home), qualname)
            if is_class and isinstance(found, type) and (own or not _has_call(found)):
                return found
            if not is_class and found is not None and not isinstance(defined, ast.Assign):
                return found
        what = "class" if is_class else "callable"
        raise _refused(f"A {what} that a recording may not name: {home}:{qualname}.")

    def module(self, home: str, *, is_code: bool = False) -> types.ModuleType:
        """One of a few modules that lambdas close over; of code, an own file."""
        if is_code:
            home, _, own = self._resolve(home)
            if own:
                return super().module(home)
            raise _refused(f"The code of an inner function is in {home}.")
        if home in _MODULES and home in sys.modules:
            return sys.modules[home]
        raise _refused(f"A module that a recording may not name: {home}.")

    def method(self, owner: Any, name: str) -> Any:
        """A method of a tensor, the forward of a module, or one that own files define."""
        if issubclass(type(owner), torch.Tensor):
            if id(inspect.getattr_static(torch.Tensor, name, None)) in _tensor_functions():
                return getattr(owner, name)
            raise _refused(f"A method that a recording may not name: Tensor.{name}.")
        is_class = issubclass(type(owner), type)
        kind = owner if is_class else type(owner)
        found = inspect.getattr_static(kind, name, None)
        function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if isinstance(function, types.FunctionType):
            allowed = _is_of_torch(kind) and name == "forward"
            if allowed or self._is_own_code(function):
                return found.__get__(None if is_class else owner, kind)
        raise _refused(f"A method that a recording may not name: {type.__repr__(kind)}.{name}.")

    def _resolve(self, home: str, file: str = "") -> tuple[str, str, bool]:
        """By which name a module is imported, its source, and whether that is the user's own.

        Own are the scripts that the user names, whatever a recording calls them, and the modules in
        their folders.
        """
        is_path = os.path.isabs(home)
        found = home if is_path else source_of(home)
        for place in (found, file, self._named.get(home)):
            if place and os.path.realpath(place) in self._scripts:
                return (os.path.realpath(place), os.path.realpath(place), True)
        if is_path:
            return home, "", False
        beside = source_of(home, self._paths)
        loaded = _file(sys.modules[home]) if home in sys.modules else beside
        # Python imports the first module of a name that it finds: it must be this one.
        return home, found, bool(beside) and beside == found == loaded

    def _is_own_code(self, function: types.FunctionType) -> bool:
        file = os.path.realpath(function.__code__.co_filename)
        return file in self._scripts or (file, True) == self._resolve(function.__module__ or "")[1:]


def _refused(what: str, given: str | None = None) -> RecordingError:
    return RecordingError(
        what,
        given=given,
        expected="a Function of an installed module or of a script that you name; plain data, "
        "tensors, and functions of tensors or of your own files",
        mend=_MEND,
    )


def _is_of_torch(found: Any, *others: type) -> bool:
    """Whether it is a module of torch, or another class of it: made, it runs nothing.

    Called, a module of torch computes with tensors alone.
    """
    return (
        isinstance(found, type)
        and found.__module__.startswith(("torch.nn.", "torch.return_types"))
        and any(base in _mro(found) for base in (torch.nn.Module, *others))
    )


def _mro(kind: type) -> tuple[type, ...]:
    """The bases of a class, whatever its metaclass answers."""
    return type.__dict__["__mro__"].__get__(kind)


def _has_call(found: type) -> bool:
    """Whether an instance is a callable."""
    return any("__call__" in vars(base) for base in _mro(found))


def _is_operator(found: ast.FunctionDef) -> bool:
    """Whether a function is decorated as torch makes a custom operator."""
    return any("custom_op" in ast.unparse(item) for item in found.decorator_list)


def _is_function(found: Any) -> bool:
    return isinstance(found, torch.library.CustomOpDef) or (
        isinstance(found, type) and torch.autograd.Function in _mro(found)
    )


def _static(owner: Any, qualname: str) -> Any:
    """Follow a name through module and classes without running a descriptor or ``__getattr__``."""
    for number, part in enumerate(qualname.split(".")):
        if number and not isinstance(owner, type):
            return None
        if owner is None:
            return None
        owner = inspect.getattr_static(owner, part, None) if number else vars(owner).get(part)
    return owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner


def _file(module: Any) -> str:
    file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    return os.path.realpath(file) if isinstance(file, str) else ""


@functools.cache
def _tensor_functions() -> frozenset[int]:
    """Ids of the functions of torch that take tensors and compute: those that can be overridden."""
    found = torch.overrides.get_overridable_functions()
    return frozenset(id(item) for items in found.values() for item in items)
