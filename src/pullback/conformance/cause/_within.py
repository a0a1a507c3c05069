"""The Functions that a callable applies, and the same callable with others in their place."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch

from pullback.conformance.evidence._intent import infer_intent
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._mends import Undo, around, changed
from pullback.conformance.probing._prepare import prepare
from pullback.conformance.probing._probe import Probe
from pullback.internal.torch import answer_by, function_of
from pullback.tensor import reference_of

__all__ = ["alone", "functions_in", "mended_within", "with_functions"]

_CALLS, _NODES = 2, 2000  # calls of a Function that are looked at, and nodes of a graph

_Kind = type[torch.autograd.Function]


def functions_in(probe: Probe) -> list[_Kind]:
    """The Function that is looked at; of a callable around some, those that it applies."""
    subject = probe.subject
    if _is_around(subject):
        return _applied(probe)
    return [subject.target.function if subject.function is None else subject.function]


def mended_within(probe: Probe, steps: Sequence[Undo]) -> Subject | None:
    """The subject with other methods, step by step; of a callable, the Functions that it applies.

    Returns:
        The subject; ``None`` where it cannot be had.
    """
    kinds = functions_in(probe)
    others = {kind: changed(kind, steps) for kind in kinds}
    known = {kind: other for kind, other in others.items() if other is not None}
    return with_functions(probe.subject, known) if known and len(known) == len(kinds) else None


def with_functions(subject: Subject, others: Mapping[_Kind, _Kind]) -> Subject:
    """A subject with other Functions in the place of some."""
    if not _is_around(subject):
        (other,) = others.values()
        return replace(subject, call=other.apply, function=other)
    return _with(subject, others)


def alone(probe: Probe) -> Iterator[Probe]:
    """Each Function that a callable applies, as a subject of its own with what it was given."""
    calls: dict[_Kind, list[Sequence[Any]]] = {}
    if not _is_around(probe.subject):
        return

    def taken(kind: _Kind) -> _Kind:
        split = kind.setup_context is not torch.autograd.Function.setup_context
        kept = calls.setdefault(kind, [])

        def forward(method: Any, *args: Any) -> Any:
            own = args if split else args[1:]
            kept.extend([[_apart(a) for a in own]] * (len(kept) < _CALLS))
            return method(*args)

        return changed(kind, [around(forward=forward)]) or kind

    with suppress(Exception):  # as its clauses say
        subject = _with(probe.subject, {kind: taken(kind) for kind in _applied(probe)})
        replace(probe, subject=subject).evaluate(probe.leaves())
    for kind, every in calls.items():
        for args in every:
            with suppress(Exception):  # one that cannot be called by itself
                there = infer_intent(prepare(Subject.of(kind), Arguments.of(args), probe.seed))
                if there.intent == "exact" and there.fault is None:
                    yield there


def _is_around(subject: Subject) -> bool:
    """Whether it is no Function itself."""
    return subject.function is None and reference_of(subject.target) is None


def _apart(value: Any) -> Any:
    """A tensor in the graph as one of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _applied(probe: Probe) -> list[_Kind]:
    """The Functions in the graph of a callable's outputs, the latest first."""
    found: dict[_Kind, None] = {}
    with suppress(Exception):  # as its clauses say
        outputs = probe.evaluate(probe.leaves())  # before torch 2.9 these alone own the graph
        nodes = [y.grad_fn for y in outputs]
        seen = set()
        while nodes and len(seen) < _NODES:
            node = nodes.pop(0)
            if node is not None and node not in seen:
                seen.add(node)
                nodes += [behind for behind, _ in node.next_functions]
                kind = function_of(node)
                if kind is not None:
                    found.setdefault(kind)
    return [*found]


def _with(subject: Subject, others: Mapping[_Kind, _Kind]) -> Subject:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _standing_in(others):
            return subject.call(*args, **kwargs)

    return replace(subject, call=call)


@contextmanager
def _standing_in(others: Mapping[_Kind, _Kind]) -> Iterator[None]:
    """While forward runs the classes have the methods of others; backward finds those by its node.

    So their own are back in place before anything else is called, whatever thread ends last.
    """
    entered: list[tuple[_Kind, dict[str, Any]]] = []
    try:
        for kind, other in others.items():
            told = around(fill=_answered_by(other))(other)
            methods = {n: m for n, m in vars(other).items() if isinstance(m, staticmethod)} | told
            entered.append((kind, methods))
            with _lock:
                _entered.setdefault(kind, []).append(methods)
                _put(kind)
        yield
    finally:
        for kind, methods in entered:
            with _lock:
                _entered[kind] = [one for one in _entered[kind] if one is not methods]
                _put(kind)


_lock = threading.Lock()
_entered: dict[_Kind, list[dict[str, Any]]] = {}
_own: dict[_Kind, dict[str, Any]] = {}  # what the classes define themselves


def _put(kind: _Kind) -> None:
    """Give a class the methods that were entered last, or its own."""
    own, latest = _own.setdefault(kind, {}), _entered[kind][-1] if _entered[kind] else {}
    for name in latest:
        own.setdefault(name, vars(kind).get(name))
    for name, method in own.items():
        if latest.get(name, method) is not None:
            setattr(kind, name, latest.get(name, method))
        elif name in vars(kind):
            delattr(kind, name)
    if not latest:
        del _own[kind], _entered[kind]


def _answered_by(other: _Kind) -> Callable[..., Any]:
    def fill(method: Any, ctx: Any, *args: Any, **kwargs: Any) -> Any:
        answer_by(ctx, other)
        return method(ctx, *args, **kwargs)

    return fill
