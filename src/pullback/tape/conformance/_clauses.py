"""The clauses of the contract that make sense for any value of the tape, and their verdicts.

Numbers and tensors are compared to a tolerance, feedback by its texts. What the tape's engine
itself refuses by name (an undeclared change in place, a stale value) is a breach that cannot go
unseen, and is reported as such.
"""

import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import ArgumentTypeError, DefinitionError, PullbackError, UnsupportedError
from pullback.tape import Feedback, Function, Variable, grad, jvp, no_grad, vjp, vmap
from pullback.tape._layout import find, replace
from pullback.tape.conformance._probe import (
    Breach,
    Gradients,
    Probe,
    Skip,
    Trial,
    agree,
    another,
    mix,
    move,
    numbers_in,
    plain_data,
    require,
)

__all__ = ["judge", "takes"]


def _derivative(probe: Probe) -> str:
    if probe.gradient != "exact":
        raise Skip(f"The gradient is declared {probe.gradient}.")
    trial = probe.trial()
    gradients = trial.back()
    draw = random.Random(probe.seed)  # noqa: S311  # not a secret
    along = [[draw.gauss(0, 1) for _ in numbers_in(leaf.data)] for leaf in trial.leaves]
    weights = [n for seed in trial.seeds for n in numbers_in(seed.data)]
    if not any(along) or not weights:
        raise Skip("No number among the inputs and outputs.")

    def value(step: float) -> float:
        moved, leaves = probe.fresh()
        with no_grad():
            for leaf, change in zip(leaves, along, strict=True):
                leaf.data = move(leaf.data, iter([step * c for c in change]))
        results = [n for output in probe.run(moved) for n in numbers_in(output.data)]
        return sum(w * n for w, n in zip(weights, results, strict=True))

    coarse, fine = ((value(h) - value(-h)) / (2 * h) for h in (2e-5, 1e-5))
    slope = sum(
        a * g
        for change, gradient in zip(along, gradients, strict=True)
        for a, g in zip(change, numbers_in(gradient) or [0.0] * len(change), strict=True)
    )
    scale = max(1.0, abs(fine), abs(slope))
    if abs(coarse - fine) > 1e-3 * scale:
        raise Skip("The function is not smooth here: finite differences have no limit.")
    if abs(slope - fine) > 1e-5 * scale + 3 * abs(coarse - fine):
        raise Breach(f"backward says {slope:.6g} along a direction, differences say {fine:.6g}.")
    return f"Along a direction both say {fine:.6g}."


def _linear(probe: Probe) -> str:
    if probe.gradient == "nonlinear":
        raise Skip("The gradient is declared nonlinear.")
    trial = probe.trial()
    if not any(numbers_in(output.data) for output in trial.outputs):
        raise Skip("No output is a number.")
    first, second = probe.seeds(trial.outputs, 1), probe.seeds(trial.outputs, 2)
    mixed = [
        Variable(mix(a.data, b.data)) if numbers_in(a.data) else a
        for a, b in zip(first, second, strict=True)
    ]
    a, b, both = (trial.back(seeds=each, retain_graph=True) for each in (first, second, mixed))
    for x, y, z in zip(a, b, both, strict=True):
        pairs = zip(numbers_in(x), numbers_in(y), numbers_in(z), strict=True)
        if any(abs(2.5 * p - 1.5 * q - r) > 1e-9 * max(1.0, abs(r)) for p, q, r in pairs):
            raise Breach("B(2.5 a - 1.5 b) is not 2.5 B(a) - 1.5 B(b).")
    return "B(2.5 a - 1.5 b) = 2.5 B(a) - 1.5 B(b)."


def _saved(probe: Probe) -> str:
    trial = probe.trial()
    leaves, seeds = trial.leaves, trial.seeds
    for seed in seeds:
        seed.requires_grad = True
    found = grad(trial.outputs, leaves, seeds, create_graph=True, allow_unused=True)
    for gradient in found:
        for part in gradient or () if isinstance(gradient, Feedback) else (gradient,):
            if part is not None and part.requires_grad:  # refused by name, if it cannot be right
                again = probe.seeds([part])
                grad([part], [*leaves, *seeds], again, retain_graph=True, allow_unused=True)
    return "backward reads inputs, outputs and constants only."


def _leak(probe: Probe) -> str:
    was = gc.isenabled()
    gc.disable()
    try:
        trial = probe.trial()
        references = [weakref.ref(output) for output in trial.outputs]
        references.append(weakref.ref(trial.outputs[0].grad_fn))
        trial.back()
        del trial
        alive = sum(reference() is not None for reference in references)
    finally:
        if was:
            gc.enable()
    if alive:
        raise Breach("An output or its node lives on after all that uses it is gone.")
    return "Outputs and nodes are freed without the garbage collector."


def _stale(probe: Probe) -> str:
    before, trial = probe.trial().back(), probe.trial()
    with no_grad():
        for variable in find(trial.args)[0]:
            variable.data = another(variable.data)
    try:
        after = trial.back()
    except PullbackError:
        return "A saved value that was changed since is noticed."
    if not agree(before, after):
        raise Breach("An input was changed after forward, and backward gave another gradient.")
    return "A later change of the inputs does not matter."


def _mutation(probe: Probe) -> str:
    trial = probe.trial()
    given = copy.deepcopy([plain_data(seed) for seed in trial.seeds])
    trial.back()
    if not agree(given, [plain_data(seed) for seed in trial.seeds]):
        raise Breach("backward changes the gradient that it is given.")
    before, variables = ([v.data for v in find(args)[0]] for args in (probe.args, trial.args))
    dirty = any(v is output for v in find(trial.args)[0] for output in trial.outputs)
    if not dirty and not agree(before, variables):
        raise Breach("An input was changed in place.")
    return "Inputs and gradients are left as they are."


def _undefined(probe: Probe) -> str:
    trial = probe.trial()
    if len(trial.outputs) < 2:
        raise Skip("There is one output.")
    joint = trial.back(retain_graph=True)
    parts = [
        trial.back([output], [seed], retain_graph=True)
        for output, seed in zip(trial.outputs, trial.seeds, strict=True)
    ]
    for index, whole in enumerate(joint):
        sums = [sum(column) for column in zip(*[numbers_in(p[index]) for p in parts if p[index]
                is not None], strict=True)]  # fmt: skip
        if not agree(numbers_in(whole), sums or [0.0] * len(numbers_in(whole))):
            raise Breach(f"The products of single outputs do not add up, for leaf {index}.")
    return "The products of single outputs add up."


def _needs(probe: Probe) -> str:
    whole = probe.trial().back()
    if len(whole) < 2:
        raise Skip("One input is differentiated.")
    for index, gradient in enumerate(whole):
        [alone] = probe.trial(only=index).back()
        if not agree(alone, gradient):
            raise Breach(f"Wanted alone, the gradient of leaf {index} is another.")
    return "Each gradient is the same when it alone is wanted."


def _retain(probe: Probe) -> str:
    trial = probe.trial()
    if not agree(*[trial.back(retain_graph=True) for _ in range(2)]):
        raise Breach("Two backward passes over one retained graph differ.")
    return "Two backward passes over one retained graph agree."


def _state(probe: Probe) -> str:
    alone, trial = probe.trial().back(), probe.trial()
    args, leaves = probe.fresh()
    with no_grad():
        for leaf in leaves:
            leaf.data = another(leaf.data)
    outputs = probe.run(args)
    Trial(args, leaves, outputs, probe.seeds(outputs)).back()
    if not agree(alone, trial.back()):
        raise Breach("Another call between forward and backward changes the gradient.")
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(probe.trial().back())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != 4 or not all(agree(alone, result) for result in results):
        raise Breach("Four threads at once do not give what one gives.")
    return "Calls in between and beside do not disturb it."


def _structure(probe: Probe) -> str:
    if not any(isinstance(arg, list | tuple | dict) and find((arg,))[0] for arg in probe.args):
        raise Skip("No argument is nested.")
    if all(gradient is None for gradient in probe.trial().back()):
        raise Breach("No gradient comes back to the nested arguments.")
    return "Gradients come back in the structure of the arguments."


def _transforms(probe: Probe) -> str:
    trial = probe.trial()
    whole, leaves = trial.back(), trial.leaves
    if len(leaves) == len(trial.args) and len(trial.outputs) == 1:
        plain = [leaf.detach() for leaf in leaves]
        out, pull = vjp(probe.function.apply, *plain)
        if not agree(whole, [plain_data(g) for g in pull(*probe.seeds([out]))]):
            raise Breach("vjp does not agree with backward.")
        batch = vmap(probe.function.apply)(*[[leaf, leaf] for leaf in plain])
        if not agree([out.data] * 2, list(batch.data)):
            raise Breach("vmap does not agree with a loop.")
        _push(probe, leaves, whole)
    return "vjp, vmap and jvp agree with backward."


def _push(probe: Probe, leaves: list[Variable], whole: Gradients) -> None:
    numbers = [numbers_in(leaf.data) for leaf in leaves]
    out = probe.run(tuple(leaves))[0]
    if probe.gradient == "nonlinear" or not all(numbers) or not numbers_in(out.data):
        return
    tangents = tuple(Variable(move(leaf.data, iter(lambda: 0.5, None))) for leaf in leaves)
    _, change = jvp(probe.function.apply, tuple(leaf.detach() for leaf in leaves), tangents)
    [seed] = probe.seeds([out])
    pushed = sum(a * b for a, b in zip(numbers_in(seed.data), numbers_in(change.data), strict=True))
    pulled = sum(
        a * b
        for gradient, tangent in zip(whole, tangents, strict=True)
        for a, b in zip(numbers_in(gradient), numbers_in(tangent.data), strict=False)
    )
    if abs(pushed - pulled) > 1e-9 * max(1.0, abs(pulled)):
        raise Breach(f"<w, J v> = {pushed:.6g} and <J'w, v> = {pulled:.6g}.")


def _deterministic(probe: Probe) -> str:
    if probe.function.random:
        raise Skip("It is declared random.")
    trials = [probe.trial() for _ in range(2)]
    runs = [[[output.data for output in each.outputs], each.back()] for each in trials]
    if not agree(*runs):
        raise Breach("Two runs with the same inputs differ.")
    return "Two runs with the same inputs are the same."


def _form(probe: Probe) -> str:
    trial = probe.trial()
    if not trial.outputs:
        raise DefinitionError("No output carries a gradient.")
    trial.back()
    return "Every gradient is of the space of its input."


CLAUSES: dict[str, Callable[[Probe], str]] = {
    "derivative": _derivative, "linear": _linear, "transforms": _transforms, "saved": _saved,
    "leak": _leak, "stale": _stale, "mutation": _mutation, "form": _form,
    "needs-input-grad": _needs, "undefined": _undefined, "deterministic": _deterministic,
    "state": _state, "retain": _retain, "structure": _structure,
}  # fmt: skip


_SAID = 240  # characters of an error


def takes(function: Any) -> bool:
    """Whether this is a Function of the tape, or its apply.

    Example:
        >>> from pullback.tape import sin
        >>> takes(sin)
        False
    """
    return _owner(function) is not None


def _owner(function: Any) -> type[Function] | None:
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, type) and issubclass(owner, Function) else None


def judge(
    function: Any, inputs: tuple[Any, ...], gradient: str | None, clauses: Sequence[str], seed: int
) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Check a Function of the tape.

    Arguments:
        function: the Function, or its apply.
        inputs: its arguments; Variables that require a gradient are differentiated, all numbers
            and texts if none does.
        gradient: the intent, or None for the declared one.
        clauses: ids of the clauses; those that make no sense on the tape are skipped.
        seed: the seed of every random choice.

    Returns:
        The name of the Function, its intent, and for each clause the verdict, what was seen and
        how to mend it.

    Raises:
        ArgumentTypeError: nothing among the inputs is a Variable.
    """
    owner: Any = _owner(function)
    variables, _ = find(inputs)
    if not variables:
        raise ArgumentTypeError(
            f"{owner.__name__} was given no Variable.", given=f"{len(inputs)} inputs",
            mend="Pass pullback.tape.Variable(value).",
        )  # fmt: skip
    if not any(variable.requires_grad for variable in variables):
        inputs = replace(inputs, [require(variable) for variable in variables])
    probe = Probe(owner, inputs, gradient or owner.gradient, seed)
    name = f"{owner.__module__}:{owner.__qualname__}"
    return name, probe.gradient, [_verdict(probe, clause) for clause in clauses]


def _verdict(probe: Probe, clause: str) -> tuple[str, str, str]:
    test = CLAUSES.get(clause)
    if test is None:
        return "skipped", "It makes no sense for values of the tape.", ""
    try:
        return "holds", test(probe), ""
    except Skip as reason:
        return "skipped", str(reason), ""
    except Breach as reason:
        return "broken", str(reason), ""
    except UnsupportedError as error:
        return "lacking", f"It says {_describe(error)}", ""
    except PullbackError as error:
        return "broken", _describe(error), error.mend or ""
    except Exception as error:  # the checked code may raise anything
        return "crashes", _describe(error), ""


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_SAID]}"
