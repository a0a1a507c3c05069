"""Run a program in this process as Python itself would."""

import builtins
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.machinery import (
    BuiltinImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import CodeType, ModuleType
from typing import Any, cast

__all__ = ["run_as_main"]


def run_as_main(command: Sequence[str], *, beside: bool = True) -> None:
    """Run a script, what holds a ``__main__.py``, ``-m module``, ``-c code`` or ``-``.

    What that sees in `sys` stays there. Modules beside it are found unless ``beside`` is false, as
    with ``python -P``.
    """
    first, *rest = command
    place, folder = os.path.join(os.getcwd(), first), ""
    if first == "-c":
        code = compile(rest.pop(0), "<string>", "exec", dont_inherit=True)
        main = _module(BuiltinImporter)
    elif first == "-":
        code = compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True)
        main = _module(BuiltinImporter, "<stdin>")
    elif first == "-m":
        name, folder = rest.pop(0), os.getcwd()
        _be_given([first, *rest], folder if beside else None)  # as packages see it meanwhile
        first, code, main = _found(name)
        beside = False
    elif spec := PathFinder.find_spec("__main__", [place]):
        folder, beside = place, True
        _, code, main = _of_spec(spec)
    else:
        folder = os.path.dirname(os.path.realpath(place))
        code, main = _script(place)
    _be_given([first, *rest], folder if beside else None)
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    vars(main).update(__name__="__main__", __builtins__=builtins)
    try:
        exec(code, vars(main))  # noqa: S102 - the user's own program
    finally:
        sys.modules["__main__"] = before


def _found(name: str) -> tuple[str, CodeType, ModuleType]:
    """The file of a module, or of what runs a package, its code, and the module that it runs in."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    if spec is None:
        raise ImportError(f"No module named {name}", name=name)
    return _of_spec(spec)


def _of_spec(spec: ModuleSpec) -> tuple[str, CodeType, ModuleType]:
    code = cast(InspectLoader, spec.loader).get_code(spec.name)
    if code is None:
        raise ImportError(f"There is no code of {spec.name}", name=spec.name)
    return spec.origin or "", code, importlib.util.module_from_spec(spec)


def _be_given(words: list[str], folder: str | None) -> None:
    sys.argv = words
    if folder is not None:
        sys.path.insert(0, folder)


def _script(place: str) -> tuple[CodeType, ModuleType]:
    """The code of a file, which nothing is kept of, and the module that it runs in."""
    if place.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", place)
        return cast(CodeType, compiled.get_code("__main__")), _module(compiled, place)
    loader = SourceFileLoader("__main__", place)
    return loader.source_to_code(loader.get_data(place), place), _module(loader, place)


def _module(loader: Any, file: str = "") -> ModuleType:
    main = ModuleType("__main__")
    main.__loader__ = loader
    if file:
        main.__file__, main.__cached__ = file, None  # type: ignore[assignment]  # as of a script
    return main
