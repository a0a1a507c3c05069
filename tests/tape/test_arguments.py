"""What is no argument of a public call of the tape ends in an error of ours, before any work."""

import asyncio

import pytest
from tests.arguments import Call, in_order, public_calls, wrong_answers

from pullback import tape
from pullback.tape import Feedback, Space, Variable, graph, space_of


def leaf():
    return Variable(2.0, requires_grad=True)


def note():
    return Variable("said")


def backward():
    x = leaf()
    given = {
        "variables": x * x,
        "grad_variables": None,
        "retain_graph": True,
        "create_graph": False,
        "inputs": x,
    }
    return Call(tape.backward, given, {"grad_variables": "none"})


def awaited():
    call = backward()
    return Call(lambda **given: asyncio.run(tape.abackward(**given)), call.given,
                {"retain_graph": "none", "inputs": "none"})  # fmt: skip


def grad():
    x = leaf()
    given = {
        "outputs": x * x,
        "inputs": x,
        "grad_outputs": None,
        "retain_graph": True,
        "create_graph": False,
        "allow_unused": True,
        "materialize_grads": False,
    }
    return Call(tape.grad, given)


def method(value, name, **given):
    return Call(getattr(value, name), given)


def unary(function):
    return lambda: Call(function, {"a": leaf()}, {"a": "whole negative nan"})


def hook(gradient):
    return gradient


def node():
    return (leaf() * leaf()).grad_fn


CALLS = {
    **{name: unary(getattr(tape, name)) for name in ("cos", "exp", "log", "sin", "sqrt", "tanh")},
    "Feedback": lambda: Call(Feedback, {"notes": [note()], "role": "x"}, {"notes": "empty"}),
    "Variable": lambda: Call(
        Variable,
        {"data": 2.0, "role": "x", "requires_grad": True, "name": "x"},
        {"data": "negative nan text empty none"},
    ),
    "Variable.requires_grad_": lambda: method(leaf(), "requires_grad_", requires_grad=True),
    "Variable.backward": lambda: method(
        leaf() * 2, "backward", gradient=None, retain_graph=True, create_graph=False
    ),
    "Variable.register_hook": lambda: method(leaf(), "register_hook", hook=hook),
    "Variable.register_post_accumulate_grad_hook": lambda: method(
        leaf(), "register_post_accumulate_grad_hook", hook=hook
    ),
    "abackward": awaited,
    "at": lambda: Call(in_order(tape.at), {"part": "x"}, {"part": "whole negative"}),
    "backward": backward,
    "concurrency": lambda: Call(tape.concurrency, {"limit": 3}),
    "grad": grad,
    "jvp": lambda: Call(
        tape.jvp, {"func": lambda x: x * x, "primals": (leaf(),), "tangents": (Variable(1.0),)}
    ),
    "once_differentiable": lambda: Call(tape.once_differentiable, {"backward": hook}),
    "register_space": lambda: Call(
        tape.register_space,
        {"kind": type("Own", (), {}), "factory": space_of(0.0)},
        {"factory": "class"},
    ),
    "set_grad_enabled": lambda: Call(tape.set_grad_enabled, {"mode": True}),
    "space_of": lambda: Call(space_of, {"data": 2.0}, {"data": "negative nan text empty none"}),
    "stack": lambda: Call(tape.stack, {"values": [leaf()]}, {"values": "empty"}),
    "vjp": lambda: Call(in_order(tape.vjp), {"func": lambda x: x, "x": leaf()}),
    "vmap": lambda: Call(
        lambda func, **given: tape.vmap(func, **given)([1.0]),
        {"func": hook, "in_dims": 0, "out_dims": 0, "randomness": "same"},
        {"in_dims": "none", "out_dims": "none", "randomness": "none"},
        choices="in_dims out_dims randomness",
    ),
    "GradientEdge": lambda: Call(
        lambda node, output_nr: graph.summary(graph.GradientEdge(node, output_nr)),
        {"node": node(), "output_nr": 0},
        {"output_nr": ""},
    ),
    "Node": lambda: Call(
        graph.Node, {"name": "x", "next_functions": [(node(), 0)]}, {"next_functions": "empty"}
    ),
    "Node.register_hook": lambda: method(node(), "register_hook", hook=hook),
    "Node.register_prehook": lambda: method(node(), "register_prehook", hook=hook, output_nr=0),
    "from_json": lambda: Call(graph.from_json, {"text": graph.to_json(leaf() * 2)}),
    "get_gradient_edge": lambda: Call(graph.get_gradient_edge, {"variable": leaf()}),
    "saved_variables_hooks": lambda: Call(
        graph.saved_variables_hooks, {"pack": hook, "unpack": hook}
    ),
    "summary": lambda: Call(graph.summary, {"roots": leaf(), "limit": 3}),
    "to_dot": lambda: Call(graph.to_dot, {"roots": leaf()}),
    "to_json": lambda: Call(graph.to_json, {"roots": leaf(), "indent": 2}, {"indent": "negative"}),
}
# What a subclass writes and the engine calls, takes anything, or is made by the tape alone.
WRITTEN = {
    "Function",
    "Function.apply",
    "Function.aapply",
    "Origin",
    *(
        f"Function.{rule}"
        for rule in ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")
    ),
    *(f"Space.{verb}" for verb in vars(Space) if not verb.startswith("_")),
    *(f"Node.{verb}" for verb in ("retain", "pull", "apull", "push")),
}


def test_every_public_call_is_here():
    assert public_calls(tape, graph) - WRITTEN == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(name):
    call = CALLS[name]()
    call.function(**call.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []
