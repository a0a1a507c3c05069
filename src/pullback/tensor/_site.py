"""`Site`: one place in a compiled graph where a Function stands as an operator.

What the operator runs is no part of the graph, which may be kept on disk: it has a key for it.
"""

import enum
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal._generators import rewind_shared
from pullback.internal.torch import (
    FakeTensor,
    disable_current_modes,
    free_symbols,
    hint_of,
    mode_without_values,
    pytree,
    recording,
    storage_of,
    version_of,
)
from pullback.tensor._autocast import forward_state, scope
from pullback.tensor._places import same

__all__ = ["HOLE", "Site", "apart", "find", "keep", "without_values"]

_sites: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class _Hole(enum.Enum):
    TENSOR = "the place of a tensor"


HOLE = _Hole.TENSOR


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
        holed: positional and keyword arguments, with holes for the tensors.
        needs: for each tensor, whether a gradient is asked for.

    Attributes:
        inputs: dimensions, dtype and device of those that need a gradient.
        outputs: size, dtype and device of each.
        outline: how the outputs are nested, as a list of words.
    """

    def __init__(self, function: Any, holed: Any, needs: tuple[bool, ...]) -> None:
        self.function, self.name = weakref.ref(function), function.__name__
        self.holed = holed
        self.needs = needs
        self.autocast = forward_state("ambient", ())
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.outline: list[Any] = []
        self.derived: dict[Any, Any] = {}  # see `pullback.tensor._composed`

    def apply(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
        """Apply the Function as uncompiled code does; returns the outline and the outputs."""
        versions = list(map(version_of, tensors))
        args, kwargs = given = self._arguments(tensors)
        with scope(self.autocast):
            output = self.function().apply(*args, **kwargs)  # type: ignore[union-attr]
        written = not same(given, self._arguments(tensors))  # lists and dicts, which are copies
        if written or versions != list(map(version_of, tensors)):
            raise self.refusal("changes an argument in place")
        return self._describe(output)

    def _arguments(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The positional and keyword arguments, with tensors in the holes."""
        following = iter(tensors)
        return pytree.tree_map(lambda leaf: next(following) if leaf is HOLE else leaf, self.holed)

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
