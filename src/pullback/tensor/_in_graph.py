"""Let `torch.compile` put a Function into its graph whole.

Dynamo refuses to trace a Function that has a forward-mode rule, and drops its backward inside
`torch.func` transforms. A Function allowed in the graph is called by the tracer below Dynamo
with all its rules intact, so reverse mode, forward mode and composed transforms are right.

Dynamo takes a second to import. Functions defined before it is imported wait until then.
"""

import contextlib
import functools
import inspect
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal._when_imported import WhenImported
from pullback.internal.torch import (
    COMPILER,
    INTERMEDIATES_ARE_OUTPUTS,
    are_functorch_transforms_active,
    base_of,
    end_graph,
    free_symbols,
    graph_break,
    is_decided_by_values,
    is_dynamo_tracing,
    is_dynamo_trying,
    substitute_in_graph,
    trace_again,
    version_of,
)
from pullback.tensor._definition import Definition
from pullback.tensor._preserve import drawn_outside, keeps_a_fake, preserved
from pullback.tensor._read_rules import (
    calls_compiled,
    reads_a_tensor,
    reads_what_changes,
    rules_and_helpers,
    takes_an_object,
)

__all__ = [
    "confirm_outputs",
    "follow",
    "may_change",
    "prepare",
    "refuse_change",
    "refuse_constants",
    "refuse_decisions",
    "tried",
    "tried_below",
]

_base: Any = torch.autograd.Function
_waiting: weakref.WeakSet[type] = weakref.WeakSet()


def prepare(function: Any) -> None:
    """Prepare a Function for Dynamo, now or as soon as Dynamo is imported.

    It goes into graphs whole, but for one whose rules read what a graph cannot take: that one is
    traced rule by rule, as torch does without pullback.
    """
    if COMPILER in sys.modules and hasattr(sys.modules[COMPILER], "allow_in_graph"):
        _register(function)
        return
    _wait()
    _waiting.add(function)


@functools.cache
def _wait() -> None:
    WhenImported(COMPILER, lambda _: _register_waiting())


def follow(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a Function whose `apply` Dynamo compiles as a piece of its own.

    Dynamo traces `_followed` in its place. Where the graph ends there, this runs, and nothing below
    it is compiled: `apply` would be compiled once more, and end there again, without end.
    """
    return function.apply(*args, **kwargs)


def _followed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function.apply(*args, **kwargs)


@functools.cache
def _let_follow() -> None:
    substitute_in_graph(follow, _followed)


@contextlib.contextmanager
def tried(function: Any, definition: Definition) -> Iterator[None]:
    """End the graph before a call that cannot run on tensors without values; it runs uncompiled.

    What the rules write to outside of their arguments is put back.

    Arguments:
        function: what Dynamo tries to put into its graph.
        definition: what was read off it.
    """
    name = definition.name
    try:
        with free_symbols(), preserved(definition):
            before = drawn_outside(definition)
            yield
            if drawn_outside(definition) != before:
                raise UnsupportedError(
                    f"{name} draws a number with Python or numpy, and torch.compile takes {name} "
                    "into its graph whole, where that number would be a constant.",
                    mend="Draw with torch, or before the call, and pass the number as an argument.",
                )
            if keeps_a_fake(definition):
                raise _NoValues(
                    f"{name} keeps a tensor that is no argument, and torch.compile takes {name} "
                    "into its graph whole, where that tensor has no values.",
                    mend="Make the tensor before the call that is compiled.",
                )
    except Exception as error:
        message = (
            f"torch.compile cannot take {name} into its graph whole, where tensors have no values. "
            f"{type(error).__name__}: {error}"
        )
        _let_go(error)
        if function.jvp is _base.jvp and not function._traced and _is_for_lack_of_values(error):
            _trace(function)
            trace_again(function, message)
        end_graph(message)


@contextlib.contextmanager
def tried_below(name: str, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """End the graph where a backward that `torch.func` runs in it cannot run without values.

    Arguments:
        name: the Function's.
        tensors: what backward is given.
    """
    try:
        with free_symbols():
            yield
    except Exception as error:
        ours = isinstance(error, PullbackError) and not isinstance(error, _NoValues)
        if not is_dynamo_tracing() or ours:
            raise
        message = (
            f"torch.compile cannot take a torch.func transform of {name} into its graph: its "
            f"backward runs there, where tensors have no values. {type(error).__name__}: {error}"
        )
        _let_go(error)
        if is_dynamo_trying(tensors):
            end_graph(message)
        raise UnsupportedError(message) from error


def _let_go(error: BaseException | None) -> None:
    """Clear the frames that an error came through.

    torch's printing of a tensor has a guard of the dispatch keys among its locals. It fails on a
    dual tensor without values, of which an error message tells, and as long as the frame lives the
    thread computes something else.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _NoValues(UnsupportedError):
    """A rule needs the values of a tensor: Dynamo can do without where it traces the rules."""


_NoValues.__name__ = UnsupportedError.__name__


def confirm_outputs(name: str, output: Any) -> Any:
    """Refuse a text or an array among the outputs: a graph that takes a call whole has no such.

    Where Dynamo traces the rules they are constants, as they are without pullback.
    """
    for entry in output if isinstance(output, tuple) else (output,):
        if isinstance(entry, (str, bytes)) or type(entry).__module__ == "numpy":
            raise _NoValues(
                f"{name} returns a {type(entry).__name__}, and torch.compile takes {name} into "
                "its graph whole, which returns tensors and numbers.",
                mend="Return it from a function around the Function.",
            )
    return output


def _is_for_lack_of_values(error: Exception) -> bool:
    if isinstance(error, PullbackError):
        return isinstance(error, _NoValues)
    return isinstance(error, (RuntimeError, TypeError, AttributeError, AssertionError))


def _register_waiting() -> None:
    waiting = sorted(_waiting, key=lambda function: len(function.__mro__))
    _waiting.clear()
    for function in waiting:  # bases before what inherits from them
        _register(function)


def _register(function: Any) -> None:
    _let_follow()
    # Dynamo traces no Function that has a jvp.
    traceable = function.jvp is _base.jvp
    reached = rules_and_helpers(function)
    outside = traceable and (
        takes_an_object(function, reached) or calls_compiled(function, reached)
    )
    reads = reads_a_tensor(reached) or reads_what_changes(reached)
    function._traced = function._traced or reads or outside
    if function._traced:
        _trace(function)
    else:
        torch.compiler.allow_in_graph(function)


def _trace(function: Any) -> None:
    function._traced = True
    function.forward = staticmethod(_refuse_composition(function))
    if inspect.ismethod(function.backward):
        function.backward = staticmethod(_unbound(function.backward))


def _unbound(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A class method as a function: Dynamo would hand it its class twice."""
    if not inspect.ismethod(rule):
        return rule
    written, owner = rule.__func__, rule.__self__

    @functools.wraps(rule)
    def unbound(*args: Any, **kwargs: Any) -> Any:
        return written(owner, *args, **kwargs)

    return unbound


def _refuse_composition(function: Any) -> Callable[..., Any]:
    """The forward of a traced Function: below `torch.func`, Dynamo would drop its backward."""
    forward, name = function.forward, function.__name__
    if hasattr(forward, "refuses_composition"):
        return forward
    signature, forward = inspect.signature(forward, follow_wrapped=False), _unbound(forward)
    combined = function.setup_context is _base.setup_context
    marks = (INTERMEDIATES_ARE_OUTPUTS and combined) and any(
        "mark_non_differentiable" in rule.__code__.co_names for rule in rules_and_helpers(function)
    )

    # Without what torch.compile wrote on a compiled forward: Dynamo would trace past this one.
    @functools.wraps(forward, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and are_functorch_transforms_active():
            graph_break(
                f"torch.compile of a torch.func transform of {name} is refused: {name} takes a "
                "function or an object as argument, reads a tensor that is no argument or a value "
                "that nothing guards, or cannot run where tensors have no values, and its backward "
                "would be dropped. Compile the function without the transform, or transform "
                "without compiling."
            )
        output = forward(*args, **kwargs)
        if INTERMEDIATES_ARE_OUTPUTS and torch.compiler.is_dynamo_compiling():
            if marks:
                graph_break(
                    f"torch 2.11 drops a gradient of {name} where its forward is traced and "
                    "returns what an operation gave back as it was (contiguous, in place): mark "
                    "outputs in setup_context, or take another torch."
                )
            return _copied(output)
        return output

    guarded.refuses_composition = True  # type: ignore[attr-defined]
    guarded.__signature__ = signature  # type: ignore[attr-defined]
    return guarded


def _copied(output: Any) -> Any:
    """The outputs as tensors of their own: no operation of forward returned any of them."""
    if isinstance(output, (tuple, list)):
        return tuple(entry.clone() if _floats(entry) else entry for entry in output)
    return output.clone() if _floats(output) else output


def _floats(entry: Any) -> bool:
    return isinstance(entry, torch.Tensor) and (entry.is_floating_point() or entry.is_complex())


def may_change(tensor: torch.Tensor) -> bool:
    """Whether a Function may change a tensor in place in the graph that is being traced.

    What the graph made may change. Of its inputs, their views and what was changed before, the
    compiler (AOTAutograd) believes that autograd does not see the change, and drops the backward.
    """
    base = base_of(tensor)
    root = tensor if base is None else base
    made = root.grad_fn is not None and "Error" not in root.grad_fn.name()
    return not tensor.requires_grad or (made and version_of(root) == 0)


@contextlib.contextmanager
def refuse_constants(name: str) -> Iterator[None]:
    """Refuse by name what a rule reads or makes of tensors that have no values."""
    try:
        yield
    except RuntimeError as error:
        if "is not supported for tensor subclasses" not in str(error):
            raise
        raise _NoValues(
            f"{name} leaves torch, and torch.compile takes {name} into its graph whole, where "
            f"tensors have no values: {error}",
            mend="Compute in torch operations, or call a kernel through torch.library.custom_op.",
        ) from error
    except AssertionError as error:
        if "allow_non_fake_inputs" not in str(error):
            raise
        raise _NoValues(
            f"{name} reads a tensor that is no argument, and torch.compile takes {name} into its "
            "graph whole, where that tensor would be a constant.",
            mend="Pass the tensor as an argument, or bind it before the class is defined.",
        ) from error


@contextlib.contextmanager
def refuse_decisions(name: str) -> Iterator[None]:
    """Refuse by name what forward decides by a number of a tensor: Dynamo fails on it anyhow."""
    try:
        yield
    except RuntimeError as error:
        if not is_decided_by_values(error):
            raise
        raise UnsupportedError(
            f"{name} decides by a number that it reads from a tensor, and torch.compile takes "
            f"{name} into its graph whole, where tensors have no values.",
            mend="Decide in torch operations (torch.where), or let the graph end before the call.",
        ) from error


def refuse_change(name: str) -> UnsupportedError:
    """The error for a change in place that the compiler would differentiate wrongly."""
    return UnsupportedError(
        f"{name} changes a tensor in place that the compiled graph takes as an input, or that "
        "was changed before: torch.compile would drop its backward.",
        mend="Apply it to a clone, or without compiling.",
    )
