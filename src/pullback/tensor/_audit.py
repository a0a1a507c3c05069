"""The audit: each derived rule is compared once with what it was derived from.

A gradient and a tangent are differentiated by running the author's rules again where autograd
sees them (`pullback.tensor._derived`). What travels where autograd cannot see it at all, such as a
Python number on a class attribute, would be a constant to it. So the first time that a derived
rule is used for a definition and a signature, its answer in one direction is compared with a
finite difference of the rules themselves, which knows nothing of autograd:

    <h, (P(s + e v) - P(s - e v)) / 2e>   against   <P'(s)^T h, v>

in float64 where the Function takes it, for two step sizes, of which the smaller must agree with
the larger: noise and kinks are no verdict. A tangent ``T v`` of a backward ``b`` is compared by
``<w, T v> = <b(w), v>`` for cotangents of several sizes, which is exact. It all runs on a thread
of its own, where no transform, mode or compiler is at work.
"""

import contextlib
import contextvars
import copy
import math
import os
import threading
import types
import weakref
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.tensor import _random
from pullback.tensor._call import Call, Follows, differentiable
from pullback.tensor._compare import Remembered, Values, Verdict, differences, inner_products
from pullback.tensor._definition import Definition
from pullback.tensor._levels import sample
from pullback.tensor._preserve import names_in_rules, preserved
from pullback.tensor._retrace import Unseen
from pullback.tensor._rounding import Unrounded

__all__ = ["Audit", "audit", "audits", "compare_rule", "compare_tangent", "is_auditing"]

Measure = Callable[[Call, Values], tuple[Verdict, float, float]]
_VIEWS = (KeysView, ValuesView, ItemsView, types.MappingProxyType, types.ModuleType)
_SIGNATURES = 64  # of one Function and rule that are audited
_TRIES = 8  # audits of one Function that may end without a verdict
_LARGE = 1 << 24  # elements of stand-in values that are not made
_PATIENCE = 120.0  # seconds for one audit
_COMMUNICATES = frozenset({
    "MPI", "ProcessGroup", "all_gather", "all_gather_into_tensor", "all_gather_object",
    "all_reduce", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "dist",
    "distributed", "funcol", "hvd", "irecv", "isend", "nccl", "process_group", "reduce_scatter",
    "reduce_scatter_tensor",
})  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """One derived rule of a Function and what its audit found.

    Attributes:
        function: the name of the Function.
        rule: ``"second derivative"``, ``"tangent"`` or ``"derivative of a tangent"``.
        signature: dtypes and structure of the arguments.
        verdict: ``"agrees"``, ``"disagrees"``, ``"no verdict"`` (noise, a kink) or ``"skipped"``.
        reason: why it was skipped or has no verdict.
        derived: what the derived rule gives.
        measured: what the finite difference gives.
        follows: what was differentiated: ``"rules"``, the operations of forward and backward, with
            the rules of Functions that they apply; ``"operations"``, those of these Functions too;
            ``"outputs"``, backward alone, as which the outputs change. The first is tried first.
    """

    function: str
    rule: str
    signature: str
    verdict: Verdict
    reason: str | None = None
    derived: float | None = None
    measured: float | None = None
    follows: Follows = "rules"


_enabled = os.environ.get("PULLBACK_AUDIT", "1").lower() not in ("0", "off", "false", "no")
_records: weakref.WeakKeyDictionary[Definition, dict[Any, Audit]] = weakref.WeakKeyDictionary()
_tries: weakref.WeakKeyDictionary[Definition, list[Any]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()
_busy: set[Any] = set()


class audit(contextlib.ContextDecorator):  # noqa: N801 - a switch that reads as a function
    """Switch the audit of derived rules on or off, for good or inside of a ``with`` block.

    Arguments:
        enabled: whether derived rules are compared with finite differences when first used.

    Example:
        >>> with audit(False):
        ...     pass  # what is derived here is not audited
    """

    def __init__(self, enabled: bool) -> None:
        global _enabled  # noqa: PLW0603 - one switch of the process
        self._before = _enabled
        _enabled = bool(enabled)

    def __enter__(self) -> "audit":
        return self

    def __exit__(self, *error: object) -> None:
        global _enabled  # noqa: PLW0603 - one switch of the process
        _enabled = self._before


def is_auditing() -> bool:
    """Whether derived rules are compared when first used."""
    return _enabled


def audits() -> list[Audit]:
    """What was audited, what was skipped, and why, for all Functions that are alive.

    Example:
        >>> isinstance(audits(), list)
        True
    """
    with _lock:
        return [record for table in list(_records.values()) for record in table.values()]


def compare_rule(
    call: Call,
    rule: str,
    again: Callable[[Call, Sequence[Any]], Sequence[Any]],
    transpose: Callable[[Call, Values, Any], tuple[Values, list[Any]]],
    sources: Sequence[torch.Tensor],
) -> Audit:
    """Compare the derivative of a result that is run again with finite differences.

    Skipped where it is not compared, so that the structure alone decides.

    Arguments:
        call: the application that asks.
        rule: what is derived, for the record.
        sources: the tensors that the result is a function of.
        again: runs the rules, without autograd; gives the result.
        transpose: the derived rule: gives the result and the gradients of the sources.

    Raises:
        UnsupportedError: they clearly disagree.
    """

    def measure(twin: Call, values: Values) -> tuple[Verdict, float, float]:
        return differences(twin, values, again, transpose)

    return _once(call, rule, sources, measure)


def compare_tangent(
    call: Call,
    push: Callable[[Call, Values], Sequence[Any]],
    pull: Callable[[Call, Values, Sequence[Any]], Sequence[Any]],
    sources: Sequence[torch.Tensor],
) -> bool:
    """Compare a transposed backward with the backward; true if it was found to agree.

    Arguments:
        call: the application that asks.
        push: the derived rule: gives the tangents of the outputs.
        pull: the author's pair for given cotangents: gives the gradients of the live inputs.
        sources: the inputs, then the tangents of those that have one.

    Raises:
        UnsupportedError: the backward is not linear, or depends on what autograd cannot see.
    """

    def measure(twin: Call, values: Values) -> tuple[Verdict, float, float]:
        return inner_products(twin, values, push, pull)

    return _once(call, "tangent", sources, measure).verdict == "agrees"


def _once(
    call: Call,
    rule: str,
    sources: Sequence[torch.Tensor],
    measure: Measure,
) -> Audit:
    """Audit a rule if this signature of it has not been audited; gives what was found."""
    definition = call.definition
    if not _enabled or not definition.audited:
        return Audit(definition.name, rule, "", "skipped", "audits are off")
    signature = _signature(call, sources)
    key = (rule, signature)
    table = _records.get(definition)
    record = None if table is None else table.get(key)
    if record is None or (record.verdict == "no verdict" and len(_tries[definition]) < _TRIES):
        nothing = any(source.numel() == 0 for source in sources)
        if nothing or (definition, key) in _busy or len(table or ()) >= _SIGNATURES:
            return Audit(definition.name, rule, str(signature), "no verdict", follows=call.follows)
        if _capturing():
            reason = "a CUDA graph was being captured"
            skipped = Audit(definition.name, rule, str(signature), "skipped", reason)
            with _lock:  # under a key of its own: it is audited at the next use outside of one
                _records.setdefault(definition, {})[*key, reason] = skipped
            return skipped
        _busy.add((definition, key))
        try:
            record = _audit(call, rule, str(signature), sources, measure)
            if record.verdict in ("disagrees", "skipped") and rule != "tangent":
                record = _audit_others(call, record, sources, measure)
        finally:
            _busy.discard((definition, key))
        with _lock:
            _records.setdefault(definition, {})[key] = record
            if record.verdict == "no verdict":
                _tries.setdefault(definition, []).append(key)
    if record.verdict == "disagrees":
        raise _refusal(record)
    return record


def _audit_others(
    call: Call, record: Audit, sources: Sequence[torch.Tensor], measure: Measure
) -> Audit:
    """Audit the other ways to a derivative; gives that of the first that agrees, if one does."""
    if record.reason is not None and "TimeoutError" in record.reason:
        return record
    others: tuple[Follows, ...] = ("operations", "outputs")
    for follows in others:
        found = _audit(call, record.rule, record.signature, sources, measure, follows=follows)
        if found.verdict == "agrees":
            return replace(found, follows=follows)
    return record


def _refusal(record: Audit) -> UnsupportedError:
    if record.rule == "tangent":
        what = (
            f"Forward mode of {record.function} cannot be derived: its backward is not linear in "
            "the cotangent, or autograd sees only a part of it."
        )
    else:
        what = (
            f"The {record.rule} of {record.function} cannot be derived: it disagrees with what "
            "the author's own forward and backward do."
        )
    given = f"derived {record.derived:.6g}, measured {record.measured:.6g} in one direction"
    return UnsupportedError(
        what,
        given=record.reason or given,
        expected="that all backward depends on reaches it through torch operations",
        mend="Save tensors rather than numbers and compute with torch, or write jvp; declare "
        "gradient = 'nonlinear' or backward once_differentiable if that is meant.",
    )


def _audit(
    call: Call,
    rule: str,
    signature: str,
    sources: Sequence[torch.Tensor],
    measure: Measure,
    *,
    follows: Follows = "rules",
) -> Audit:
    name = call.definition.name

    # Long: one list of reasons to leave a rule out, then the comparison.
    def skipped(reason: str) -> Audit:
        return Audit(name, rule, signature, "skipped", reason)

    if call.dirty or call.definition.mutates:
        return skipped("it changes an argument in place")
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    if names_in_rules(call.definition, far=connected) & _COMMUNICATES:
        return skipped("it may communicate with other processes")
    try:
        holes = _copied(call.template[0])
    except Exception as error:
        return skipped(f"an argument cannot be copied ({type(error).__name__})")
    found = [sample(source) for source in sources]
    values = [value for value in found if value is not None]
    if len(values) < len(sources):
        try:
            values = _stand_ins(sources, len(call.needs), found)
        except Exception as error:
            return skipped(f"no values can be made up ({type(error).__name__}: {error})")
    twin = copy.copy(call)
    twin.template, twin.agreed = (holes, call.template[1]), True  # what it shows is measured
    twin.follows = follows

    def run(values: Values) -> tuple[Verdict, float, float]:
        with preserved(call.definition), _random.kept(_random.states(values)):
            outcome = _elsewhere(lambda: _in_dtypes(measure, twin, values), values)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    try:
        outcome = run(values)
        if _tells_nothing(outcome):
            outcome = run(_stand_ins(sources, len(call.needs), values))
        elif not math.isfinite(outcome[1]):
            # Maybe for these values alone, as at a square root of 0.
            with contextlib.suppress(Exception):
                other = run(_stand_ins(sources, len(call.needs), values))
                outcome = other if other[0] == "agrees" else outcome
    except Remembered as error:
        return Audit(name, rule, signature, "disagrees", str(error), 0.0, 0.0)
    except Unseen as error:  # what works beside it was not computed from its arguments
        reason = f"run afresh it is refused: {str(error).splitlines()[0]}"
        return Audit(name, rule, signature, "disagrees", reason, 0.0, 0.0)
    except Exception as error:
        first = str(error).split("\n")[0][:200]
        return skipped(f"it cannot be run on its own ({type(error).__name__}: {first})")
    verdict, derived, measured = outcome
    reason = "noise, or a kink" if verdict == "no verdict" else None
    return Audit(name, rule, signature, verdict, reason, derived, measured)


def _tells_nothing(outcome: tuple[Verdict, float, float]) -> bool:
    verdict, derived, measured = outcome
    return verdict == "no verdict" or not max(abs(derived), abs(measured)) > 1e-20


def _in_dtypes(measure: Any, twin: Call, values: Values) -> tuple[Verdict, float, float]:
    """Measure in float64, and in the dtypes that were given: rules may differ in each."""
    wide = _widened(twin, values)
    same = all(a.dtype is b.dtype for a, b in zip(wide[1], values, strict=True))
    try:
        outcome = _unrounded(measure, *wide)
    except Remembered:
        raise
    except Exception as error:
        if same:
            raise
        outcome = _unrounded(measure, twin, values)
        if isinstance(error, Unseen) and outcome[0] != "agrees":
            raise
        return outcome
    if same or outcome[0] == "disagrees":
        return outcome
    own = _unrounded(measure, twin, values)
    return own if own[0] == "disagrees" else outcome


def _unrounded(measure: Any, twin: Call, values: Values) -> tuple[Verdict, float, float]:
    """Measure without what the rules round; with it, if they cannot be run so."""
    dtypes = [value.dtype for value in values if differentiable(value.dtype)]
    if dtypes:
        finest = min(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        with contextlib.suppress(Exception), Unrounded(finest):
            return measure(twin, values)
    return measure(twin, values)


def _copied(value: Any) -> Any:
    """A deep copy, in which what only looks at others, and cannot be copied, stays as it is."""
    kept: dict[int, Any] = {}
    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _VIEWS):
            kept[id(item)] = item
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            pending += item
        elif not isinstance(item, type):
            pending += getattr(item, "__dict__", {}).values()
    return copy.deepcopy(value, kept)


def _elsewhere(run: Callable[[], Any], values: Values) -> Any:
    """Run on a thread of its own; gives the result, or the exception."""
    outcome: list[Any] = []
    context = contextvars.copy_context()
    devices = [v.device for v in values if v.device.type == "cuda"]
    stream = torch.cuda.current_stream(devices[0]) if devices else None

    def work() -> None:
        try:
            with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                outcome.append(context.run(run))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="pullback-audit", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return outcome[0] if outcome else TimeoutError(f"no answer after {_PATIENCE:.0f} s")


def _widened(call: Call, values: Values) -> tuple[Call, Values]:
    wide = copy.copy(call)
    for name in ("inputs", "outputs"):
        metas = getattr(call, name, None)
        if metas is not None:
            setattr(wide, name, [(shape, _wide(dtype), device) for shape, dtype, device in metas])
    wide.autocast = None
    return wide, [value.to(_wide(value.dtype)) for value in values]


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _stand_ins(
    sources: Sequence[torch.Tensor], inputs: int, found: Sequence[torch.Tensor | None]
) -> Values:
    """Make up values of the same shapes where there are none, or where they tell nothing.

    Whole numbers and flags that are there are kept: they choose what rules do.
    """
    values = []
    for i, source in enumerate(sources):
        known = found[i]
        if known is not None and not differentiable(known.dtype):
            values.append(known)
            continue
        shape = [int(size) for size in (source if known is None else known).shape]
        if math.prod(shape) > _LARGE:
            raise ValueError("too large")
        made = _elsewhere(lambda s=source, n=shape, k=i: _made(s, n, k < inputs), [])
        if isinstance(made, BaseException):
            raise made
        values.append(made)
    return values


def _made(source: torch.Tensor, shape: list[int], is_input: bool) -> torch.Tensor:
    dtype, device = source.dtype, source.device
    if not differentiable(dtype):
        return torch.zeros(shape, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(0)
    made = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.3
    return (made if is_input else made - 0.8).to(device=device, dtype=dtype)


def _signature(call: Call, sources: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Dtypes, dimensions and structure of the arguments."""
    holes, spec = call.template
    kinds = tuple(
        hole if isinstance(hole, (bool, str, type(None), torch.dtype)) else type(hole).__name__
        for hole in holes
    )
    tensors = tuple((str(source.dtype), source.dim()) for source in sources)
    return (tensors, kinds, str(spec) if spec is not None else None)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
