"""What a kernel must not call, and whether it does."""

import inspect
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from pullback.conformance import Arguments, guarded, resizings
from pullback.errors import ArgumentError
from pullback.internal.torch import (
    CustomOpDef,
    FunctionMode,
    OpOverload,
    OpOverloadPacket,
    TorchDispatchMode,
    overload_of,
)
from pullback.report import Verdict
from pullback.verification._answers import Answer, Subject, dtype_of
from pullback.verification._error import Result
from pullback.verification._work import Work, broken, promise

__all__ = ["Operators", "forbidden", "refuse_unknown"]


_LARGEST, _ENTRIES = 67, 2**15


@promise("it calls neither its reference nor what is forbidden", "Compute it.", alone=True)
def forbidden(work: Work) -> Result | None:
    """Neither the reference nor what is forbidden is called, at any size, backward included."""
    marks = [_mark(entry) for entry in work.forbid]
    work.reference.written(work.given)  # asked by a call of it, which is not the kernel's
    for where, arguments in _occasions(work):
        called, answer = _called(work, arguments, {_code(work.reference.given), *marks})
        if not where and answer.fault:
            return Result(Verdict.CRASHES, answer.fault)
        if _code(work.reference.given) in called:
            return broken(f"It calls its reference{where}.")
        for entry, mark in zip(work.forbid, marks, strict=True):
            if mark in called:
                name = entry if isinstance(entry, str) else getattr(entry, "__name__", str(entry))
                return broken(f"It calls {name}, which is forbidden{where}.")
    return None


def _occasions(work: Work) -> Iterator[tuple[str, Arguments]]:
    """The example, and a larger and a smaller size of each of its sizes."""
    yield "", work.given
    drawn = torch.Generator().manual_seed(work.seed)
    for resizing in resizings(work.given, _LARGEST, _ENTRIES, drawn) if work.sizes else ():
        for size in (resizing.size - 1, resizing.largest):
            made = resizing.at(size) if 0 < size != resizing.size else None
            if made is not None and not work.silent().truth(made).fault:
                yield f", at size {size} of {resizing.where}", made


def _called(work: Work, arguments: Arguments, marks: Set[Any]) -> tuple[set[Any], Answer]:
    """The code and names of what a kernel calls, its backward included, and what it answers."""
    functions: list[Any] = []

    class Functions(FunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            functions.append(func)
            return func(*args, **(kwargs or {}))

    kernel, operators = work.kernel.of(dtype_of(arguments)), Operators()

    def watched(*args: Any, **kwargs: Any) -> Any:
        with Functions(), operators:  # of backward torch's own formulas have operators too
            return kernel(*args, **kwargs)

    codes = {mark for mark in marks if isinstance(mark, CodeType)}
    with guarded(), _calls_of(codes) as called:
        answer = work.run(watched, arguments)
        if answer.fault:  # it may refuse to be differentiated
            answer = work.silent().run(watched, arguments)
    return {
        *called,
        *map(_plain, functions),
        *(name.strip("_") for name in operators.names),
    }, answer


def refuse_unknown(forbid: Sequence[Any]) -> None:
    """Refuse to forbid what no call would be known by: a kernel that calls it would pass.

    Raises:
        ArgumentError: an entry is no function of torch or of Python, no operator, and names none.
    """
    for entry in forbid:
        if _mark(entry) is None:
            raise ArgumentError(
                "What is forbidden is no function or operator that could be called.",
                given=repr(entry),
                expected="a function of torch or of Python, or a name: 'softmax', 'mylib::scale'",
                mend="Check the spelling; an operator is there once its module is imported.",
            )


def _mark(entry: Any) -> CodeType | str | None:
    """What calls of something are known by: a name that torch has, or the code that Python runs."""
    name = _plain(entry)
    if isinstance(entry, (CustomOpDef, OpOverload, OpOverloadPacket)):
        return name
    # A name has no module, nor has what is written in C.
    home = getattr(entry, "__module__", None) or "torch"
    if home.partition(".")[0] == "torch" and _is_named(name):
        return name
    return _code(entry)


def _plain(entry: Any) -> str:
    """The name that a function of torch has in common with its operator, without underscores."""
    if isinstance(entry, CustomOpDef):
        entry = overload_of(entry)
    if isinstance(entry, OpOverload):
        entry = entry.overloadpacket
    if not isinstance(entry, str):
        return getattr(entry, "__name__", "").strip("_")
    _, colons, operator = entry.partition("::")
    return (operator.partition(".")[0] if colons else entry.rpartition(".")[2]).strip("_")


def _is_named(name: str) -> bool:
    """Whether torch has a function, or an operator that was imported, of a plain name."""
    found = torch.overrides.get_overridable_functions().values()
    if any(_plain(each) == name for some in found for each in some):
        return bool(name)
    written = (name, f"_{name}", f"{name}_", f"__{name}__")
    return any(
        isinstance(getattr(getattr(torch.ops, space), each, None), OpOverloadPacket)
        for space in torch.ops for each in written
    )  # fmt: skip


def _code(function: Any) -> CodeType | None:
    """What Python runs of a function, module or Function; ``None`` of what it does not run."""
    given = Subject(function).given
    code = getattr(inspect.unwrap(getattr(given, "forward", given)), "__code__", None)
    return code if isinstance(code, CodeType) else None


class Operators(TorchDispatchMode):
    """Notes the name of each operator of torch that is run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def _calls_of(codes: Set[CodeType]) -> Iterator[set[CodeType | str]]:
    """Note which code of these Python runs, and the names of what it calls of torch.

    In this thread, and in those that are started meanwhile; in every one from Python 3.12 on.
    """
    called: set[CodeType | str] = set()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            called.add(frame.f_code)
        elif event == "c_call" and _is_of_torch(argument) and not _is_ours(frame):
            called.add(_plain(argument))

    before, others = sys.getprofile(), threading.getprofile()
    everywhere = getattr(threading, "setprofile_all_threads", threading.setprofile)
    everywhere(profile)
    sys.setprofile(profile)
    try:
        yield called
    finally:
        everywhere(others)
        sys.setprofile(before)


def _is_of_torch(function: Any) -> bool:
    home = getattr(function, "__module__", None) or ""
    owner = getattr(function, "__self__", None)
    return home.partition(".")[0] == "torch" or isinstance(owner, torch.Tensor)


def _is_ours(frame: Any) -> bool:
    """Whether the call is one of those that ask a kernel for its answer."""
    return str(frame.f_globals.get("__name__", "")).startswith("pullback.verification.")
