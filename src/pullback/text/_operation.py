"""`Operation`: a Function of texts, whose forward mode runs it again on the edited input."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import UnsupportedError
from pullback.tape import Feedback, Function, Variable, is_grad_enabled
from pullback.text._edits import apply_edit, current_editor, edit_between, is_exact
from pullback.text._failure import failure_in
from pullback.text._replies import between_tags, send_prompt

__all__ = ["Operation", "edit_of"]


class Operation(Function):
    """A Function of a specification and Variables: ``forward(spec, *variables)``.

    The specification holds what is no Variable, so that rules may read it at any order. A
    subclass writes forward and backward. Forward mode is counterfactual: the operation runs again
    on the edited inputs, and the tangent is the edit between its two outputs.

    Where an input is a `Failure`, so is the output: nobody is asked, and what is said of it goes
    back to that input alone. One that has ``takes_failures`` is run all the same.
    """

    gradient = "nonlinear"
    takes_failures = False
    _waits = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._waits = inspect.iscoroutinefunction(cls.forward)
        if "forward" in vars(cls) and not cls.takes_failures:
            cls.forward = staticmethod(_handing_on(cls.forward))
            cls.backward = staticmethod(_sending_back(cls.backward))
        if cls._waits:
            cls.jvp = staticmethod(_awaited_rule(cls.forward))
        else:
            cls.jvp = staticmethod(_rule(cls.forward))

    @classmethod
    def run(cls, spec: Any, *variables: Variable) -> Any:
        """Apply; where nothing is recorded, forward alone, which costs a tenth.

        For rules, which are run with plain values of their own; awaitable if forward is.
        """
        if is_grad_enabled():
            return (cls.aapply if cls._waits else cls.apply)(spec, *variables)
        return cls.forward(spec, *variables)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the specification, the inputs and the outputs."""
        spec, *variables = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.spec = spec
        ctx.save_for_backward(*variables, *outputs)


def _handing_on(forward: Any) -> Any:
    """A forward that gives a failure of its inputs in place of an output."""

    def handed_on(variables: Sequence[Variable]) -> Any:
        found = failure_in([variable.data for variable in variables])
        return None if found is None else Variable(found, "failure")

    @functools.wraps(forward)
    def called(spec: Any, *variables: Variable) -> Any:
        found = handed_on(variables)
        return forward(spec, *variables) if found is None else found

    @functools.wraps(forward)
    async def awaited(spec: Any, *variables: Variable) -> Any:
        found = handed_on(variables)
        return await forward(spec, *variables) if found is None else found

    return awaited if inspect.iscoroutinefunction(forward) else called


def _sending_back(backward: Any) -> Any:
    """A backward that, of an output that was handed on, tells the failed inputs alone."""

    def failed(ctx: Any) -> list[bool]:
        count = len(ctx.needs_input_grad) - 1
        return [failure_in(value._data) is not None for value in ctx.saved_variables[:count]]

    def sent(ctx: Any, told: list[bool], feedback: Any) -> Any:
        wanted = zip(told, ctx.needs_input_grad[1:], strict=True)
        return (None, *[feedback if each and need else None for each, need in wanted])

    @functools.wraps(backward)
    def called(ctx: Any, *feedback: Any) -> Any:
        told = failed(ctx)
        return sent(ctx, told, feedback[0]) if any(told) else backward(ctx, *feedback)

    @functools.wraps(backward)
    async def awaited(ctx: Any, *feedback: Any) -> Any:
        told = failed(ctx)
        return sent(ctx, told, feedback[0]) if any(told) else await backward(ctx, *feedback)

    return awaited if inspect.iscoroutinefunction(backward) else called


def _rule(forward: Any) -> Any:
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        inputs, outputs = _saved(ctx, len(tangents))
        edited = [_edited(value, tangent) for value, tangent in zip(inputs, tangents, strict=True)]
        return _difference(outputs, forward(ctx.spec, *edited))

    return jvp


def _awaited_rule(forward: Any) -> Any:
    async def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        inputs, outputs = _saved(ctx, len(tangents))
        if not any(map(_says, tangents)):  # nothing changes, so nothing is asked
            return _difference(outputs, outputs)
        edited = [
            await _aedited(value, tangent)
            for value, tangent in zip(inputs, tangents, strict=True)
        ]  # fmt: skip
        return _difference(outputs, await forward(ctx.spec, *edited))

    return jvp


def edit_of(
    function: Callable[..., Variable], inputs: Sequence[Variable], tangents: Sequence[Any]
) -> Any:
    """The edit of what a function gives, where its inputs are edited."""
    edited = [_edited(value, tangent) for value, tangent in zip(inputs, tangents, strict=True)]
    return _difference((function(*inputs),), function(*edited))


def _saved(ctx: Any, count: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    saved = ctx.saved_variables
    return saved[:count], saved[count:]


def _says(tangent: Any) -> bool:
    return tangent is not None and bool(_parts(tangent.data))


def _parts(data: Any) -> list[Any]:
    """What a tangent says, without the slots that say nothing."""
    if isinstance(data, Variable):
        data = data.data
    if isinstance(data, list | tuple):
        return [part for each in data for part in _parts(each)]
    if isinstance(data, dict):
        return [part for each in data.values() for part in _parts(each)]
    return [data] if data else []


def _edited(value: Variable, tangent: Any) -> Variable:
    data = value.data if not _says(tangent) else _carry_out(value.data, tangent.data)
    return Variable(data, value.role)


async def _aedited(value: Variable, tangent: Any) -> Variable:
    if not _says(tangent):
        return Variable(value.data, value.role)
    edit = tangent.data
    if isinstance(value.data, str) and not is_exact(edit):
        return Variable(await _ask_for_edit(value.data, edit), value.role)
    return Variable(_carry_out(value.data, edit), value.role)


def _carry_out(data: Any, edit: Any) -> Any:
    edit = edit.data if isinstance(edit, Variable) else edit
    if not edit:
        return data
    if isinstance(data, str):
        if is_exact(edit) or current_editor() is None:
            return apply_edit(data, edit)
        lm = current_editor()
        return between_tags(lm.complete(_edit_messages(data, edit)).text, "EDITED")
    if isinstance(data, list | tuple):
        return type(data)(_carry_out(*pair) for pair in zip(data, edit, strict=True))
    if isinstance(data, dict):
        return {key: _carry_out(below, edit.get(key)) for key, below in data.items()}
    return data + edit


async def _ask_for_edit(text: str, edit: str) -> str:
    lm = current_editor()
    if lm is None:
        return apply_edit(text, edit)  # refuses, and says how to give an editor
    completion = await lm.acomplete(_edit_messages(text, edit))
    return between_tags(completion.text, "EDITED")


def _edit_messages(text: str, edit: str) -> list[dict[str, str]]:
    return send_prompt("apply_edit", text=text, edit=edit)


def _difference(before: tuple[Any, ...], after: Any) -> Any:
    after = after if isinstance(after, tuple) else (after,)
    if len(before) != len(after):
        raise UnsupportedError(
            "An edit of the input changes how many outputs there are.",
            given=f"{len(after)} outputs", expected=str(len(before)),
        )  # fmt: skip
    changes = tuple(
        Variable(_change(old.data, new.data), f"edit of {old.role}")
        for old, new in zip(before, after, strict=True)
    )
    return changes[0] if len(changes) == 1 else changes


def _change(before: Any, after: Any) -> Any:
    if isinstance(before, str) and isinstance(after, str):
        return edit_between(before, after)
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return {key: _change(below, after[key]) for key, below in before.items()}
    both = isinstance(before, list | tuple) and isinstance(after, list | tuple)
    if both and len(before) == len(after):
        return type(before)(_change(*pair) for pair in zip(before, after, strict=True))
    if isinstance(before, int | float) and isinstance(after, int | float):
        return after - before
    if type(before) is type(after) and isinstance(before, Feedback | bytes | None):
        return None
    raise UnsupportedError(
        "An edit of the input changes the structure of an output.", given=repr(after)[:80],
        expected=f"the structure of {repr(before)[:80]}",
    )  # fmt: skip
