"""`Operation`: a Function of texts, which hands failures on."""

import functools
import inspect
from collections.abc import Callable
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
            cls.forward = staticmethod(_unless(_handed_on, cls.forward))
            cls.backward = staticmethod(_unless(_sent_back, cls.backward))

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


def _handed_on(spec: Any, *variables: Variable) -> Variable | None:
    """In place of forward: the first failure of the inputs; None where there is none."""
    found = failure_in([variable.data for variable in variables])
    return None if found is None else Variable(found, "failure")


def _sent_back(ctx: Any, *feedback: Any) -> tuple[Any, ...] | None:
    """In place of backward, of what was handed on: what was said, to the failed inputs alone."""
    wanted = ctx.needs_input_grad[1:]
    failed = [failure_in(each._data) is not None for each in ctx.saved_variables[: len(wanted)]]
    if not any(failed):
        return None
    told = zip(failed, wanted, strict=True)
    return (None, *[feedback[0] if each and need else None for each, need in told])


def _unless(first: Callable[..., Any], rule: Callable[..., Any]) -> Any:
    """The rule, where `first` has nothing to give in its place."""

    @functools.wraps(rule)
    def called(*args: Any) -> Any:
        found = first(*args)
        return rule(*args) if found is None else found

    @functools.wraps(rule)
    async def awaited(*args: Any) -> Any:
        found = first(*args)
        return await rule(*args) if found is None else found

    return awaited if inspect.iscoroutinefunction(rule) else called
