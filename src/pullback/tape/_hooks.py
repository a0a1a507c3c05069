"""Hooks on Variables and nodes."""

import weakref
from collections.abc import Callable
from typing import Any

from pullback.errors import ArgumentTypeError, GraphError
from pullback.tape._node import AccumulateGrad, Handle, Node
from pullback.tape._registry import OPERATIONS, Space
from pullback.tape._variable import Variable, describe

__all__: list[str] = []


def _register_hook(variable: Variable, hook: Callable[[Any], Any]) -> Handle:
    _differentiated(variable, "A hook was registered on")
    if variable._node is None:
        extra = variable._more()
        if extra.hooks is None:
            extra.hooks = {}
        return Handle(extra.hooks, hook)
    node = variable._node
    if node._prehooks is None:
        node._prehooks = {}
    return Handle(node._prehooks, (variable._output_nr, hook))


def _register_post_accumulate_grad_hook(
    variable: Variable, hook: Callable[[Variable], Any]
) -> Handle:
    _differentiated(variable, "A hook was registered on")
    if variable._node is not None:
        raise GraphError(
            "Only a leaf has a hook after its gradient is accumulated.", given=describe(variable)
        )
    extra = variable._more()
    if extra.post_hooks is None:
        extra.post_hooks = {}
    return Handle(extra.post_hooks, hook)


def _retain_grad(variable: Variable) -> None:
    _differentiated(variable, "retain_grad was called on")
    if variable._node is None:
        return
    node = variable._node
    if node._retained is None:
        node._retained = {}
    node._retained[variable._output_nr] = weakref.ref(variable)


def _differentiated(variable: Variable, what: str) -> None:
    if not variable._requires_grad:
        raise GraphError(f"{what} a Variable that requires no gradient.", given=describe(variable))


def _run_prehooks(node: Node, gradients: list[Any]) -> list[Any]:
    """What the hooks before a node's rule make of its gradients."""
    if isinstance(node, AccumulateGrad):
        extra = node.variable._extra
        hooks = [] if extra is None or extra.hooks is None else list(extra.hooks.values())
        entries = [(0, hook) for hook in hooks]
    else:
        entries = []
    entries += list((node._prehooks or {}).values())
    for number, hook in entries:
        if number is None:
            answer = hook(tuple(gradients))
            if answer is not None:
                answers = answer if isinstance(answer, tuple) else (answer,)
                if len(answers) != len(gradients):
                    raise ArgumentTypeError(
                        f"A hook of {node.title()} returned a wrong number of gradients.",
                        given=str(len(answers)), expected=str(len(gradients)),
                    )  # fmt: skip
                gradients = [
                    None if each is None else _conform(node, output.space, each)
                    for each, output in zip(answers, node.outputs, strict=True)
                ]
        elif gradients[number] is not None:
            answer = hook(gradients[number])
            if answer is not None:
                gradients[number] = _conform(node, node.outputs[number].space, answer)
    return gradients


def _run_hooks(node: Any, sent: list[Any], received: list[Any]) -> list[Any]:
    """What the hooks after a node's rule make of the gradients that it sends."""
    for hook in list(node._hooks.values()):
        answer = hook(tuple(sent), tuple(received))
        if answer is None:
            continue
        answers = answer if isinstance(answer, tuple) else (answer,)
        if len(answers) != len(sent):
            raise ArgumentTypeError(
                f"A hook of {node.title()} returned a wrong number of gradients.",
                given=str(len(answers)), expected=str(len(sent)),
            )  # fmt: skip
        sent = [
            None if each is None else _conform(node, space, each)
            for each, space in zip(answers, node.spaces, strict=True)
        ]
    return sent


def _conform(node: Node, space: Space | None, gradient: Any) -> Any:
    def complain(detail: str) -> Exception:
        return ArgumentTypeError(f"A hook of {node.title()} returned no gradient for it: {detail}.")

    if space is None:
        raise complain("the output has none")
    conformed = space.conform(gradient, complain)
    return space.total((conformed,))


OPERATIONS.update(
    register_hook=_register_hook,
    register_post_accumulate_grad_hook=_register_post_accumulate_grad_hook,
    retain_grad=_retain_grad,
    prehooks=_run_prehooks,
    hooks=_run_hooks,
)
