"""`Site`: one place in a compiled graph where a Function stands as an operator.

What the operator runs is no part of the graph, which may be kept on disk: it has a key for it.

Code that Dynamo traces sees neither types nor shapes. A function whose result is a constant in the
graph runs while it traces, and is given constants alone. torch's own way from the first to the
second is `comptime`, by which the arguments of a call are shown.
"""

import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal._generators import rewind_shared
from pullback.internal.torch import (
    FakeTensor,
    constant_in_graph,
    disable_current_modes,
    free_symbols,
    hint_of,
    is_exporting,
    is_whole,
    mode_without_values,
    recording,
    storage_of,
    version_of,
    while_tracing,
)
from pullback.tensor.values._autocast import forward_state, scope
from pullback.tensor.values._places import same
from pullback.tensor.values._structure import Template, unflatten

__all__ = [
    "Site",
    "apart",
    "constant_of",
    "example_of",
    "find",
    "is_tensor",
    "keep",
    "last_shown",
    "may_be_operator",
    "show",
    "without_values",
]

_shown: list[Any] = []  # one graph is traced at a time, in whichever thread


def show(leaf: Any) -> None:
    """Show an argument to what Dynamo calls next."""
    while_tracing(_note)


def _note(context: Any) -> None:
    _shown.append(context.get_local("leaf", stacklevel=1))


def may_be_operator(composed: bool) -> bool:
    """Whether an operator may stand in the graph, which is asked for only where it must not end.

    To learn the shapes it runs forward once; where the graph may end, nothing is run.
    """
    while_tracing(_note_whole)
    return _is_allowed(composed)


def _note_whole(context: Any) -> None:
    _shown.append(is_whole(context))


@constant_in_graph
def _is_allowed(composed: bool) -> bool:
    # An exported program goes to processes that do not have the Function.
    return (_shown.pop() or composed) and not is_exporting()


def last_shown(count: int) -> list[Any]:
    """The arguments that were shown last; the others were of a trace that has failed."""
    last = _shown[len(_shown) - count :]
    _shown.clear()
    return last


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a tensor; Dynamo has tensors for some numbers too."""
    return issubclass(argument.python_type(), torch.Tensor)


def constant_of(argument: Any) -> Any:
    """The value of an argument that is no tensor; the graph is made anew for another one."""
    if not argument.is_python_constant():
        argument.force_static()
        return argument.python_type()(hint_of(argument.as_fake()))
    return argument.as_python_constant()


def example_of(argument: Any) -> Any:
    """A value with the type and the shape of an argument, for which there is no guard."""
    if argument.is_python_constant():
        return argument.as_python_constant()
    if not is_tensor(argument):
        return argument.python_type()(hint_of(argument.as_fake()))
    fake = argument.as_fake()
    size, stride = (tuple(map(hint_of, numbers)) for numbers in (fake.size(), fake.stride()))
    example = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)
    example.requires_grad_(fake.requires_grad)
    return example.clone() if _may_be_changed(argument, fake) else example


def _may_be_changed(argument: Any, fake: torch.Tensor) -> bool:
    """Whether a traced Function may change a tensor in place, which it may not do to a leaf.

    torch loses the gradient where what it changes lies in memory that the graph is given. Where
    all tensors that are given are leaves, that is an error of torch's.
    """
    nodes = argument.as_proxy().node.graph.nodes
    given = (n.meta.get("example_value") for n in nodes if n.op in ("placeholder", "get_attr"))
    tensors = (value for value in given if isinstance(value, torch.Tensor))
    return not fake.is_leaf and all(tensor.is_leaf for tensor in tensors)


_sites: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def keep(site: Any) -> str:
    """Give what an operator runs a key, good for as long as somebody holds it."""
    key = uuid.uuid4().hex  # no number: another process would find another site by it
    _sites[key] = site
    return key


def find(key: str) -> Any:
    """What an operator runs."""
    return _sites[key]


class Site:
    """One place in a compiled graph where a Function is applied.

    Arguments:
        function: the class.
        template: positional and keyword arguments, with holes for the tensors.
        needs: for each tensor, whether a gradient is asked for.

    Attributes:
        inputs: dimensions, dtype and device of those that need a gradient.
        outputs: size, dtype and device of each.
        outline: how the outputs are nested, as a list of words.
    """

    def __init__(self, function: Any, template: Template, needs: tuple[bool, ...]) -> None:
        self.function, self.name = weakref.ref(function), function.__name__
        self.template, self.needs = template, needs
        self.autocast = forward_state("ambient", ())
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.outline: list[Any] = []
        self.derived: dict[Any, Any] = {}  # see `pullback.tensor.compiled._composed`

    def apply(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
        """Apply the Function as uncompiled code does; returns the outline and the outputs."""
        versions = list(map(version_of, tensors))
        args, kwargs = given = unflatten(self.template, tensors)
        with scope(self.autocast):
            output = self.function().apply(*args, **kwargs)  # type: ignore[union-attr]
        # Its lists and dicts are copies.
        written = not same(given, unflatten(self.template, tensors))
        if written or versions != list(map(version_of, tensors)):
            raise self.refusal("changes an argument in place")
        return self._describe(output)

    def leaves(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The arguments as leaves of a graph of autograd."""
        pairs = zip(tensors, self.needs, strict=True)
        return [tensor.detach().requires_grad_(need) for tensor, need in pairs]

    def learn(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Learn from tensors without values what the outputs are, and return such outputs."""
        needing = (t for t, need in zip(tensors, self.needs, strict=True) if need)
        self.inputs = [(t.dim(), t.dtype, t.device) for t in needing]

        def run(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with torch.set_grad_enabled(any(self.needs)):
                self.outline, outputs = self.apply(self.leaves(given))
            return outputs

        outputs = without_values(self.name, run, tensors)
        self.outputs = [(list(y.size()), y.dtype, y.device) for y in outputs]
        return outputs

    def confirm(self, outline: list[Any], outputs: Sequence[torch.Tensor]) -> None:
        """Refuse outputs on which the graph does not rely: they depend on what has changed."""
        pairs = zip(outputs, self.outputs, strict=False)
        if outline != self.outline or not all(_fits(y, known) for y, known in pairs):
            raise self.refusal("returns outputs of another form than when it was compiled")

    def refusal(self, what: str) -> UnsupportedError:
        """The error for what an operator cannot be."""
        return UnsupportedError(
            f"{self.name} {what}, and it stands as one operator in a compiled graph, since "
            "torch.compile cannot trace its rules.",
            mend="Apply it outside of what is compiled, or write rules that can be traced.",
        )

    def _describe(self, output: Any) -> tuple[list[Any], list[torch.Tensor]]:
        outline: list[Any] = []
        tensors: list[torch.Tensor] = []

        def visit(value: Any) -> None:
            if value is None:
                outline.append(None)
            elif isinstance(value, torch.Tensor):
                outline.extend(("tensor" if value.requires_grad else "constant", len(tensors)))
                tensors.append(value)
            elif type(value) in (list, tuple, dict):
                outline.extend((type(value).__name__, len(value)))
                for entry in value:
                    if type(value) is dict:
                        outline.append(entry)
                    visit(value[entry] if type(value) is dict else entry)
            else:
                raise self.refusal(f"returns a {type(value).__name__}")

        visit(output)
        return outline, tensors


def _fits(tensor: torch.Tensor, known: Any) -> bool:
    """Whether an output is as it was known; a size that may vary is any."""
    size, *rest = known
    sizes = zip(tensor.size(), size, strict=False)
    same = tensor.dim() == len(size) and [tensor.dtype, tensor.device] == rest
    return same and all(now == before or type(before) is not int for now, before in sizes)


def without_values(name: str, run: Any, tensors: Sequence[Any]) -> list[torch.Tensor]:
    """What ``run`` returns where the tensors that it is given have no values: their shapes alone.

    What rules make of nothing but numbers has values: they may keep that for the next call.

    Raises:
        NotImplementedError: it fails, for whatever reason: an error of this kind ends the graph
            of Dynamo before the call, which then runs uncompiled.
    """
    undo = rewind_shared()
    try:
        mode = next(tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor))
        with mode_without_values(mode):
            given = list(map(_like, tensors))
        with free_symbols(mode), disable_current_modes(), torch.random.fork_rng(), recording():
            outputs = run(given)
        if any(hint_of(size) is None for y in outputs for size in y.size()):
            raise UnsupportedError("The shape of an output depends on values.")
    except Exception as error:
        raise NotImplementedError(
            f"UnsupportedError: {name} cannot stand in a compiled graph as an operator, which runs "
            f"without values for its shapes. {type(error).__name__}: {error}"
        ) from error
    finally:
        for step in undo:
            step()
    return list(map(_like, outputs))


def _like(tensor: torch.Tensor) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)


def apart(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, copied where they lie in the memory of another: an operator must not alias."""
    seen = set(map(storage_of, others))
    result = []
    for tensor in tensors:
        result.append(tensor.clone() if storage_of(tensor) in seen else tensor)
        seen.add(storage_of(tensor))
    return result
