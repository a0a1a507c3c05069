"""A rule of a Function, called again and again as forward has left it to be called."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from pullback.conformance.comparison._changes import is_same
from pullback.conformance.evidence._transforms import push
from pullback.conformance.probing._mends import Stand, around, mended
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.source._sources import written
from pullback.internal._sparse import is_sparse, values_of

__all__ = ["Rule"]


@dataclass
class Rule:
    """A rule of a Function, as forward has left it to be called."""

    probe: Probe  # the subject
    points: Tensors  # the differentiated inputs
    weights: list[Any]  # the cotangents, or the tangents
    # what keeps the structure of each point, of its gradient too
    within: Sequence[Callable[[torch.Tensor], torch.Tensor]]
    does: str = "back"  # or ``jvp``, or ``fill``: what fills the context
    name: str = ""  # the Function's, where a callable around it is looked at
    method: Callable[..., Any] | None = None  # as the author has it
    forward: Callable[..., Any] | None = None  # what is differentiated
    left: dict[str, Any] = field(default_factory=dict)  # what forward left for it, by name
    runs: bool = False  # whether it answers as it is
    _ctx: Any = None
    _given: Sequence[Any] = ()  # the cotangents or tangents that it was handed
    _taken: Sequence[Any] = ()  # the arguments of forward

    @property
    def called(self) -> str:
        of = f" of {self.name}" * bool(self.name)
        return "The tangent" if self.does == "jvp" else f"Backward{of}"

    @property
    def answered(self) -> str:
        return "tangent" if self.does == "jvp" else "gradient"

    def is_had(self) -> bool:
        """Call the rule once, and keep what it was called with; whether it can be called again."""
        called = {"fill": self._filled} if self.does == "fill" else {
            "forward": self._forward, self.does: self._called
        }  # fmt: skip
        there = self.of(called)
        if there is None:
            return False
        with suppress(Exception):  # of a rule that fails, what it was called with is had
            if self.does == "jvp":
                push(there, self.points, _copies(self.weights))
            else:
                there.answers(there.leaves(self.points), _copies(self.weights))
            self.runs = True
        return self.method is not None

    def called_by_forward(self) -> Collection[Any]:
        """The author's functions that forward calls."""
        source = None if self.forward is None else written(self.forward)
        if source is None:
            return ()
        with suppress(Exception), torch.no_grad():  # of one that fails, those that it had called
            source.replaced({})(*(_apart_from(value) for value in _copies(self._taken)))
        return {rule.function for rule in source.rules}

    def of(self, methods: Mapping[str, Callable[..., Any]]) -> Probe | None:
        """The subject with methods that are called through others."""
        subject = mended(self.probe.subject, [around(**methods)])
        return None if subject is None else replace(self.probe, subject=subject)

    def with_rule(self, function: Callable[..., Any]) -> Probe | None:
        """The subject with another rule."""
        return self.of({self.does: lambda method, *args, **kwargs: function(*args, **kwargs)})

    def _filled(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self.method = method
        return method(*args, **kwargs)

    def _forward(self, method: Any, *args: Any) -> Any:
        self.forward, self._taken = method, _copies(args)  # which forward may change
        return method(*args)

    def _called(self, method: Any, ctx: Any, *given: Any) -> Any:
        saved = {f"ctx.saved_tensors[{k}]": t for k, t in enumerate(ctx.saved_tensors)}
        own = {f"ctx.{name}": value for name, value in vars(ctx).items()}
        self.left = dict(
            zip([*saved, *own], self._apart([*saved.values(), *own.values()]), strict=True)
        )
        self.method, self._ctx, self._given = method, ctx, _copies(given)
        return method(ctx, *given)

    @cached_property
    def places(self) -> Sequence[int]:
        """Which of what the rule returns are the answers."""
        if self.does == "jvp":
            return self.probe.outputs
        flags = getattr(self._ctx, "needs_input_grad", ())
        args = self._taken[len(self._taken) - len(flags) :]
        found: list[int] = []
        for point in self.points:
            same = (k for k, a in enumerate(args) if k not in found and _is(a, point))
            found.append(next(same, len(args)))
        return found

    def _apart(self, values: Iterable[Any]) -> list[Any]:
        """Copies of what forward left; what a callable there reads by itself is what it reads."""
        inputs, own = self.probe.inputs, [id(t) for t in self.probe.inputs.owned.values()]
        if own:
            inputs.build(inputs.leaves(self.points))  # differences have moved it
        return [v if id(v) in own else _copies([v])[0] for v in values]

    def call(
        self, function: Callable[..., Any] | None, left: Mapping[str, Any] = MappingProxyType({})
    ) -> list[torch.Tensor] | None:
        """The answers of another rule, or to what else is left for it; ``None`` if it fails."""
        if self.does == "fill" or (self._is_called_once and not left):
            return self._answers(function)
        return self._called_again(function, left)

    @cached_property
    def _is_called_once(self) -> bool:
        """Whether forward has to run for each call: a graph that it leaves ends with the first."""
        return self.does == "back" and self.runs and self._called_again(None, {}) is None

    def _called_again(
        self, function: Callable[..., Any] | None, left: Mapping[str, Any]
    ) -> list[torch.Tensor] | None:
        all_left = {**self.left, **left}
        names = list(all_left)
        values = dict(zip(names, self._apart(all_left.values()), strict=True))
        saved = tuple(v for name, v in values.items() if name.endswith("]"))
        own = {name[4:]: v for name, v in values.items() if not name.endswith("]")}
        try:
            with torch.no_grad():
                found = (function or self.method)(  # type: ignore[misc]
                    Stand(self._ctx, **own, saved_tensors=saved, saved_variables=saved),
                    *_copies(self._given),
                )
            found = found if isinstance(found, (tuple, list)) else (found,)
            answers = [found[k] for k in self.places]
            zeros = self.points if self.does == "back" else answers
            pairs = zip(answers, zeros, self.within, strict=True)
            return [_kept(t, zero, keep) for t, zero, keep in pairs]
        except Exception:  # whatever does not take what is no operand of its own
            return None

    def _answers(self, function: Callable[..., Any] | None) -> list[torch.Tensor] | None:
        """The gradients behind another rule that fills the context."""
        there = self.with_rule(function) if function else self.probe
        try:
            found = there.backward(self.points, _copies(self.weights))  # type: ignore[union-attr]
            return [keep(t) for keep, t in zip(self.within, found, strict=True)]
        except Exception:  # whatever backward does not take
            return None


def _kept(t: Any, zero: torch.Tensor, keep: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """An answer as torch takes it: of a wider shape the sum, of ``None`` zeros."""
    if t is None:
        return keep(torch.zeros_like(zero))
    return keep(_numbers(t.detach()).sum_to_size(zero.shape))


def _is(value: Any, point: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and is_same(_numbers(value), point)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """What is differentiated of it: of a sparse one the values that it has."""
    return values_of(tensor) if is_sparse(tensor) else tensor


def _apart_from(value: Any) -> Any:
    """What stands for a context, which stays as it is; anything else itself."""
    if not isinstance(value, FunctionCtx):
        return value
    methods = [name for name in dir(FunctionCtx) if not name.startswith("_")]
    return Stand(value, **dict.fromkeys(methods, lambda *_: None))


def _copies(values: Iterable[Any]) -> list[Any]:
    """Copies without history, of which a rule may ask whether they require a gradient.

    Those of a list too, in which a checkpoint keeps what its backward differentiates again; a
    parameter is read by a module as well, which has it by itself.
    """
    return [_copied(v) for v in values]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(v if isinstance(v, torch.nn.Parameter) else _copied(v) for v in value)
    return value
