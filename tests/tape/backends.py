"""The same program on torch and on the tape: what the table of cases is written in."""

from types import SimpleNamespace
from typing import Any

import torch

from pullback import tape

__all__ = ["BACKENDS", "Backend"]


class Backend(SimpleNamespace):
    """The names that a case uses, and how it reads what they give."""

    def value(self, variable: Any) -> Any:
        if variable is None:
            return None
        if isinstance(variable, tuple | list):
            return [self.value(each) for each in variable]
        if isinstance(variable, torch.Tensor):
            return [self.value(each) for each in variable] if variable.dim() else variable.item()
        data = variable.data if isinstance(variable, tape.Variable) else variable
        return self.value(data) if isinstance(data, list | tuple) else float(data)

    def raises(self, call: Any) -> bool:
        """Whether a call raises an error that says what was done wrong."""
        try:
            call()
        except (RuntimeError, ValueError, TypeError, DeprecationWarning) as error:
            return not isinstance(error, RecursionError)
        return False

    def structure(self, node: Any) -> Any:
        """The shape of a graph: leaves, holes, and the nodes between with their output numbers."""
        if node is None:
            return None
        if node.name().endswith("AccumulateGrad"):
            return "leaf"
        return [(self.structure(below), number) for below, number in node.next_functions]


def torch_variable(value: float, requires_grad: bool = False) -> Any:
    return torch.tensor(value, dtype=torch.float64, requires_grad=requires_grad)


def tape_variable(value: float, requires_grad: bool = False) -> Any:
    return tape.Variable(value, requires_grad=requires_grad)


def torch_set(variable: Any, value: float) -> None:
    variable.fill_(value)


def tape_set(variable: Any, value: float) -> None:
    variable.data = value


def torch_inplace(variable: Any, factor: float) -> None:
    variable.mul_(factor)


def tape_inplace(variable: Any, factor: float) -> None:
    variable.data = variable.data * factor


BACKENDS = {
    "torch": Backend(
        V=torch_variable, Function=torch.autograd.Function, grad=torch.autograd.grad,
        backward=torch.autograd.backward, no_grad=torch.no_grad, enable_grad=torch.enable_grad,
        set_grad_enabled=torch.set_grad_enabled, is_grad_enabled=torch.is_grad_enabled,
        sin=torch.sin, cos=torch.cos, exp=torch.exp, log=torch.log, tanh=torch.tanh,
        sqrt=torch.sqrt, jvp=torch.func.jvp, vjp=torch.func.vjp, vmap=torch.func.vmap,
        stack=torch.stack,
        get_gradient_edge=torch.autograd.graph.get_gradient_edge,
        saved_hooks=torch.autograd.graph.saved_tensors_hooks,
        once=torch.autograd.function.once_differentiable, set=torch_set, scale=torch_inplace,
    ),
    "tape": Backend(
        V=tape_variable, Function=tape.Function, grad=tape.grad,
        backward=tape.backward, no_grad=tape.no_grad, enable_grad=tape.enable_grad,
        set_grad_enabled=tape.set_grad_enabled, is_grad_enabled=tape.is_grad_enabled,
        sin=tape.sin, cos=tape.cos, exp=tape.exp, log=tape.log, tanh=tape.tanh,
        sqrt=tape.sqrt, jvp=tape.jvp, vjp=tape.vjp, vmap=tape.vmap,
        stack=tape.stack,
        get_gradient_edge=tape.graph.get_gradient_edge,
        saved_hooks=tape.graph.saved_variables_hooks,
        once=tape.once_differentiable, set=tape_set, scale=tape_inplace,
    ),
}  # fmt: skip
