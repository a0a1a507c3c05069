"""`backward`, called or awaited, and `grad`."""

from collections.abc import Iterable
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, GraphError
from pullback.internal._arguments import checked, is_whole
from pullback.internal._text import shown
from pullback.tape import _layout
from pullback.tape._engine import Pass
from pullback.tape._mode import OFF, ON, running
from pullback.tape._node import GradientEdge, Node, get_gradient_edge
from pullback.tape._registry import OPERATIONS, space_of
from pullback.tape._variable import Variable, describe

__all__ = ["abackward", "backward", "grad"]

Inputs = Variable | GradientEdge | Iterable[Variable | GradientEdge]


@checked
def backward(
    variables: Variable | Iterable[Variable],
    grad_variables: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
) -> None:
    """Run a graph back from some Variables and accumulate into the ``.grad`` of its leaves.

    Rules that wait run at once, up to the limit of `concurrency`; the result and its order are
    the same whatever the timing. If a rule fails or the run is interrupted nothing has been
    accumulated and nothing freed, so it can be run again.

    Arguments:
        variables: where the gradients come in.
        grad_variables: their gradients, one for each, None for the implicit one of a number
            (1.0); for a text a Variable, `Feedback`, or a list of Variables.
        retain_graph: keep the saved values for another run; the default is ``create_graph``.
        create_graph: record the rules, so that what they give can be differentiated itself.
        inputs: accumulate into these Variables alone, leaves or not.

    Raises:
        GraphError: a Variable requires no gradient, the graph was freed, has a cycle, or a saved
            value has changed.
        ArgumentError: the gradients given do not belong to the Variables.

    Example:
        >>> x = Variable(3.0, requires_grad=True)
        >>> backward(x * x)
        >>> x.grad
        Variable(6.0)
    """
    the_pass = _backward(variables, grad_variables, create_graph, inputs)
    the_pass.run()
    the_pass.commit(retain_graph)


@checked
async def abackward(
    variables: Variable | Iterable[Variable],
    grad_variables: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Inputs | None = None,
) -> None:
    """The same as `backward`, awaited: coroutine rules run in the loop that awaits it."""
    the_pass = _backward(variables, grad_variables, create_graph, inputs)
    await the_pass.arun()
    the_pass.commit(retain_graph)


@checked
def grad(
    outputs: Variable | Iterable[Variable],
    inputs: Inputs,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of some outputs with respect to some inputs; no ``.grad`` is touched.

    Arguments:
        outputs: where the gradients come in.
        inputs: Variables, or gradient edges, whose gradients are wanted. Only what lies between
            is run.
        grad_outputs: as ``grad_variables`` of `backward`.
        retain_graph: as in `backward`.
        create_graph: as in `backward`.
        allow_unused: give None for an input that the outputs do not depend on.
        materialize_grads: give a zero for it.

    Returns:
        One gradient an input: a Variable; for a text its `Feedback`.

    Raises:
        GraphError: as in `backward`; or an input is not used.

    Example:
        >>> x = Variable(3.0, requires_grad=True)
        >>> (slope,) = grad(x * x * x, x, create_graph=True)
        >>> grad(slope, x)
        (Variable(18.0),)
    """
    batch = _layout.batch_in(_layout.find((outputs, inputs, grad_outputs))[0])
    if batch is not None:
        # The items may share a part of their graphs, so that the first does not free it.
        retain = True if retain_graph is None else retain_graph
        more = (retain, create_graph, allow_unused, materialize_grads)
        return batch.lift(grad, (outputs, inputs, grad_outputs, *more))
    if materialize_grads and allow_unused is False:
        raise ArgumentError("materialize_grads=True is given with allow_unused=False.")
    edges = edges_in(inputs, "inputs")
    the_pass = Pass(_roots(outputs, grad_outputs), dict.fromkeys(edges), create_graph)
    the_pass.run()
    results = [the_pass.captured.get(edge) for edge in edges]
    for number, (node, output_nr) in enumerate(edges):
        space: Any = node.outputs[output_nr].space
        if results[number] is not None:
            with running(ON if create_graph else OFF):
                results[number] = space.own(results[number])
        elif materialize_grads and space is not None:
            results[number] = space.zero()
        if results[number] is None and not (allow_unused or materialize_grads):
            raise GraphError(
                f"Input {number} was not used by the outputs.",
                given=node.title(), mend="Pass allow_unused=True for None in its place.",
            )  # fmt: skip
    the_pass.commit(retain_graph)
    return tuple(results)


def listed(values: Any, name: str) -> list[Any]:
    """Variables or edges as a list: one alone, or those in a list or another iterable."""
    found = [values] if isinstance(values, Variable | GradientEdge) else list(values)
    if not found:
        raise ArgumentError(f"There is nothing in the {name}.", given=shown(values),
                            expected="a Variable, or a list of one or more")  # fmt: skip
    return found


def edges_in(values: Any, name: str) -> list[GradientEdge]:
    """Where the gradients of Variables arrive; edges as they are."""
    edges = [
        value if isinstance(value, GradientEdge) else get_gradient_edge(value)
        for value in listed(values, name)
    ]
    for node, number in edges:
        known = isinstance(node, Node) and is_whole(number)
        if not known or not 0 <= number < len(node.outputs):
            raise ArgumentTypeError("A gradient edge is a node and one of its outputs.",
                                    given=f"{shown(node)}, {shown(number)}")  # fmt: skip
    return edges


def _backward(variables: Any, gradients: Any, create_graph: bool, inputs: Any) -> Pass:
    roots = _roots(variables, gradients)
    targets = None
    if inputs is not None:
        chosen = listed(inputs, "inputs")
        if any(isinstance(value, GradientEdge) for value in chosen):
            raise ArgumentTypeError("backward accumulates into Variables, and was given an edge.")
        targets = {get_gradient_edge(value): value for value in chosen}
    return Pass(roots, targets, create_graph)


def _roots(variables: Any, gradients: Any) -> list[tuple[GradientEdge, Any]]:
    roots = listed(variables, "outputs")
    if isinstance(variables, Variable) or gradients is None:
        given: list[Any] = [gradients] * len(roots)
    else:
        if not isinstance(gradients, Iterable) or isinstance(gradients, str | dict | Variable):
            raise ArgumentTypeError(
                "The gradients of several outputs are a list.", given=shown(gradients)
            )
        given = list(gradients)
    if len(given) != len(roots):
        raise ArgumentError(
            "There is not one gradient for each output.",
            given=f"{len(given)} gradients", expected=str(len(roots)),
        )  # fmt: skip
    pairs = list(zip(roots, given, strict=True))
    while any(getattr(root, "batched", False) for root, _ in pairs):  # batches as their items
        rows = [pair[0].rows(pair)[1] if pair[0].batched else [pair] for pair in pairs]
        pairs = [pair for row in rows for pair in row]
    return [(get_gradient_edge(root), _start(root, each)) for root, each in pairs]


def _start(variable: Variable, gradient: Any) -> Any:
    """The gradient that comes in at a Variable: the one given, or the implicit one."""
    space = space_of(variable._data)
    if gradient is not None:
        return variable._conformed(gradient, of="output")
    implicit = space.seed()
    if implicit is None:
        raise GraphError(
            f"The gradient of a {space.name} is not implicit.", given=describe(variable),
            expected="a gradient for every output that is no single number",
            mend="For a text pass the feedback: Variable('...').",
        )  # fmt: skip
    return implicit


OPERATIONS["backward"] = backward
