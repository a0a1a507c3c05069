"""`Operation`: a Function of texts, which hands failures on."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from pullback.tape import Function, Variable, is_grad_enabled
from pullback.text._failure import failure_in

__all__ = ["Operation"]


class Operation(Function):
    """A Function of a specification and Variables: ``forward(spec, *variables)``.

    The specification holds what is no Variable, so that rules may read it at any order. A
    subclass writes forward and backward. There is no forward mode of texts: it is refused by name.

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
