"""Graphs of the tape: nodes and edges; as a tree in the terminal, as DOT, as JSON to read back."""

import json
import math
from typing import Any, NoReturn

from pullback.errors import GraphError
from pullback.internal._arguments import Count, checked, reading
from pullback.internal._text import shortened
from pullback.tape._context import saved_variables_hooks
from pullback.tape._node import AccumulateGrad, GradientEdge, Node, Output, get_gradient_edge, plan
from pullback.tape._registry import Space
from pullback.tape._variable import Variable  # noqa: F401  # for the examples
from pullback.tape._verbs import Inputs, edges_in

__all__ = [
    "GradientEdge",
    "Node",
    "from_json",
    "get_gradient_edge",
    "saved_variables_hooks",
    "summary",
    "to_dot",
    "to_json",
]


FORMAT = 1


class _Read(Node):
    """A node that was read from JSON: to look at."""

    __slots__ = ("notes", "outputs")
    notes: list[dict[str, str]]


@checked
def to_json(roots: Inputs, indent: int | None = None) -> str:
    """A graph as JSON: nodes, edges, roles, values that are numbers or texts, notes on leaves.

    The same graph gives the same text, whatever the process and the timing.

    Arguments:
        roots: Variables with a history, or gradient edges.
        indent: as of `json.dumps`.

    Raises:
        GraphError: a Variable has no history.

    Example:
        >>> x = Variable(2.0, role="weight", requires_grad=True)
        >>> [root] = from_json(to_json(x * x))
        >>> root.node.name()
        'MultiplyBackward'
    """
    edges, index = _graph(roots)
    nodes = [
        {
            "name": node.name(),
            "outputs": [_output(output) for output in node.outputs],
            "next": [
                None if following is None else [index[following], number]
                for following, number in node._next
            ],
            **_notes(node),
        }
        for node in index
    ]
    whole = {
        "format": FORMAT,
        "roots": [[index[edge.node], edge.output_nr] for edge in edges],
        "nodes": nodes,
    }
    text = json.dumps(whole, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character: as JSON escapes it


@checked
def from_json(text: str) -> list[GradientEdge]:
    """The roots of a graph that `to_json` wrote; its nodes are for looking at, not for running.

    Raises:
        ArgumentError: it is no such JSON.
    """
    with reading("JSON of a graph", text, "what graph.to_json wrote"):
        whole = json.loads(text, parse_constant=_refuse)
        if whole["format"] != FORMAT:
            raise ValueError(f"format {whole['format']!r}, expected {FORMAT}")
        nodes = [_Read(str(entry["name"])) for entry in whole["nodes"]]
        for node, entry in zip(nodes, whole["nodes"], strict=True):
            node.outputs = tuple(map(_read_output, entry["outputs"]))
            node.notes = [
                {"function": str(note["function"]), "text": str(note["text"])}
                for note in entry.get("notes", ())
            ]
        for node, entry in zip(nodes, whole["nodes"], strict=True):
            node.next_functions = [  # type: ignore[bad-assignment]
                (None, 0) if edge is None else _edge(nodes, *edge) for edge in entry["next"]
            ]
        try:
            plan(nodes, None)
        except GraphError as error:  # a cycle
            raise ValueError(error) from None
        return [_edge(nodes, *root) for root in whole["roots"]]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _edge(nodes: list[_Read], node: int, output: int) -> GradientEdge:
    """The edge of two numbers that are read; no number counts from the end."""
    if min(node, output) < 0 or output >= len(nodes[node].outputs):
        raise IndexError(f"there is no output {output} of node {node}")
    return GradientEdge(nodes[node], output)


@checked
def to_dot(roots: Inputs) -> str:
    r"""A graph in the DOT language of Graphviz, drawn from the leaves to the roots.

    Example:
        >>> print(to_dot(Variable(2.0, role="weight", requires_grad=True) * 3))
        digraph {
          rankdir=LR; node [fontname="sans-serif", fontsize=10];
          n0 [shape=box, style="rounded,filled", fillcolor="#dfe9f7", label="Multiply\n6.0"];
          n1 [shape=box, style="filled", fillcolor="#f4ead2", label="weight\n2.0"];
          n1 -> n0;
        }
    """
    _, index = _graph(roots)
    lines = ["digraph {", '  rankdir=LR; node [fontname="sans-serif", fontsize=10];']
    for node, number in index.items():
        leaf = node.name() == "AccumulateGrad"
        style = "filled" if leaf else "rounded,filled"
        colour = "#f4ead2" if leaf else "#dfe9f7"
        parts = (part.replace("\\", "\\\\").replace('"', '\\"') for part in _parts(node))
        label = "\\n".join(parts)
        lines.append(
            f'  n{number} [shape=box, style="{style}", fillcolor="{colour}", label="{label}"];'
        )
    for node, number in index.items():
        for following, output in node._next:
            if following is not None:
                several = len(following.outputs) > 1
                label = f' [label="{output}", fontsize=8]' if several else ""
                lines.append(f"  n{index[following]} -> n{number}{label};")
    return "\n".join([*lines, "}"])


@checked
def summary(roots: Inputs, limit: Count = 200) -> str:
    """A graph as a tree for the terminal, from the roots to the leaves.

    A node that several others lead to is written out once.

    Arguments:
        roots: Variables with a history, or gradient edges.
        limit: the most lines.

    Example:
        >>> x = Variable(2.0, role="weight", requires_grad=True)
        >>> y = x * 3
        >>> print(summary(y * y))
        Multiply  36.0
        ├─ Multiply  6.0
        │  └─ weight  2.0
        └─ Multiply  6.0  (above)
    """
    edges = edges_in(roots, "roots")
    lines: list[str] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, str, str]] = [(edge.node, "", "") for edge in reversed(edges)]
    while stack:
        node, first, rest = stack.pop()
        again = node in seen and any(following for following, _ in node._next)
        if len(lines) == limit:
            lines.append("... and more")
            break
        lines.append(first + "  ".join(_parts(node)) + ("  (above)" if again else ""))
        if again:
            continue
        seen.add(node)
        below = [following for following, _ in node._next if following is not None]
        marks = ("└─ ", "   ")  # of the last one, which is pushed first
        for each in reversed(below):
            stack.append((each, rest + marks[0], rest + marks[1]))
            marks = ("├─ ", "│  ")
    return "\n".join(lines)


def _graph(roots: Any) -> tuple[list[GradientEdge], dict[Node, int]]:
    """The edges of the roots, and every node with its number, each before what it follows from."""
    edges = edges_in(roots, "roots")
    return edges, plan(list(dict.fromkeys(edge.node for edge in edges)), None)


def _notes(node: Node) -> dict[str, Any]:
    """What was said of a leaf that is a text, with who said it; nothing of other nodes."""
    notes = node.notes if isinstance(node, _Read) else []
    if isinstance(node, AccumulateGrad) and isinstance(node.variable._grad, list):
        notes = [
            {"function": note.origin.function if note.origin else "", "text": str(note._data)}
            for note in node.variable._grad
        ]
    return {"notes": notes} if notes else {}


def _output(output: Output) -> dict[str, Any]:
    data = output.data
    if isinstance(data, float) and not math.isfinite(data):
        data = str(data)
    plain = isinstance(data, str | int | float | bool)
    name = None if output.space is None else output.space.name
    return {"space": name, "role": output.role, "data": data if plain else None}


def _read_output(entry: dict[str, Any]) -> Output:
    name, data = entry["space"], entry["data"]
    if name == "number" and isinstance(data, str):
        data = float(data)
    space = None if name is None else Space()  # of a value that was read back: its name alone
    if space is not None:
        space.name, space.plain = str(name), data is not None
    return Output(space, str(entry["role"]), data, True)


def _parts(node: Node) -> list[str]:
    """The words for a node: what it is, its role, its value, and the gradient of a leaf."""
    role = node.role
    values = [
        _short(output.data) if output.data is not None else repr(output.space)
        for output in node.outputs
        if output.data is not None or not getattr(output.space, "plain", True)
    ]
    if node.name() != "AccumulateGrad":
        parts = [node.name().removesuffix("Backward"), role, *values]
        return [part for part in parts if part]
    notes = _notes(node).get("notes", [])
    variable = node.variable if isinstance(node, AccumulateGrad) else None  # of one read back
    name, gradient = (None, None) if variable is None else (variable.name, variable._grad)
    parts = [f"{name}: {role or 'leaf'}" if name else role or "leaf", *values]
    if notes or isinstance(gradient, list):
        said = f"{len(notes)} note{'s' if len(notes) != 1 else ''}"
        return [*parts, ": ".join([said, *(_short(note["text"]) for note in notes[:1])])]
    return parts if gradient is None else [*parts, f"grad {_short(gradient._data)}"]


def _short(data: Any) -> str:
    if isinstance(data, float):
        return f"{data:.6g}" if not data.is_integer() else repr(data)
    text = shortened(" ".join((data if isinstance(data, str) else repr(data)).split()), 48)
    return f"'{text}'" if isinstance(data, str) else text
