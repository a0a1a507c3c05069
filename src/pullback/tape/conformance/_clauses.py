"""The clauses of the contract that make sense for any value of the tape, and their verdicts.

Numbers and tensors are compared to a tolerance, feedback by its texts. What the tape's engine
itself refuses by name (an undeclared change in place, a stale value) is a breach that cannot go
unseen, and is reported as such.
"""

import copy
import gc
import random
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from operator import mul
from typing import Any

from pullback.errors import ArgumentTypeError, DefinitionError, PullbackError, UnsupportedError
from pullback.tape import Feedback, Function, Variable, grad, jvp, no_grad, space_of, vjp, vmap
from pullback.tape._layout import below, find, replace
from pullback.tape.conformance._probe import (
    Breach,
    Probe,
    Skip,
    agree,
    another,
    changed,
    moved,
    numbers_in,
    plain_data,
)

__all__ = ["judge", "takes"]


def _derivative(probe: Probe) -> str:
    if probe.gradient != "exact":
        raise Skip(f"The gradient is declared {probe.gradient}.")
    trial = probe.trial()
    gradients = trial.back()
    draw = random.Random(probe.seed)  # noqa: S311  # not a secret
    along = [[draw.gauss(0, 1) for _ in numbers_in(leaf.data)] for leaf in trial.leaves]
    weights = numbers_in([seed.data for seed in trial.seeds])
    if not any(along) or not weights:
        raise Skip("No number among the inputs and outputs.")

    def value(step: float) -> float:
        changes = iter([step * change for each in along for change in each])
        args, _ = probe.fresh(lambda data: moved(data, changes))
        results = numbers_in([output.data for output in probe.run(args)])
        return sum(map(mul, weights, results))

    coarse, fine = ((value(h) - value(-h)) / (2 * h) for h in (2e-5, 1e-5))
    slope = sum(
        sum(map(mul, *pair)) for pair in zip(along, map(numbers_in, gradients), strict=True)
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
    others = iter(numbers_in([seed.data for seed in second]))
    mixed = [changed(seed.data, lambda n: 2.5 * n - 1.5 * next(others)) for seed in first]
    rows = [first, second, list(map(Variable, mixed))]
    a, b, both = (numbers_in(trial.back(seeds=row, retain_graph=True)) for row in rows)
    triples = zip(a, b, both, strict=True)
    if any(abs(2.5 * p - 1.5 * q - r) > 1e-9 * max(1.0, abs(r)) for p, q, r in triples):
        raise Breach("B(2.5 a - 1.5 b) is not 2.5 B(a) - 1.5 B(b).")
    return "B(2.5 a - 1.5 b) = 2.5 B(a) - 1.5 B(b)."


def _saved(probe: Probe) -> str:
    trial = probe.trial()
    leaves, seeds = trial.leaves, trial.seeds
    for seed in seeds:
        seed.requires_grad = True
    for gradient in grad(trial.outputs, leaves, seeds, create_graph=True, allow_unused=True):
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
        references = list(map(weakref.ref, [*trial.outputs, trial.outputs[0].grad_fn]))
        trial.back()
        del trial
        alive = any(reference() is not None for reference in references)
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
    given = copy.deepcopy([seed.data for seed in trial.seeds])
    trial.back()
    if not agree(given, [seed.data for seed in trial.seeds]):
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
        there = [numbers_in(part[index]) for part in parts if part[index] is not None]
        sums = list(map(sum, zip(*there, strict=True)))
        if not agree(numbers_in(whole), sums or [0.0] * len(numbers_in(whole))):
            raise Breach(f"The products of single outputs do not add up, for leaf {index}.")
    return "The products of single outputs add up."


def _needs(probe: Probe) -> str:
    whole = probe.trial().back()
    if len(whole) < 2:
        raise Skip("One input is differentiated.")
    for index, gradient in enumerate(whole):
        if not agree(probe.trial(only=index).back(), [gradient]):
            raise Breach(f"Wanted alone, the gradient of leaf {index} is another.")
    return "Each gradient is the same when it alone is wanted."


def _retain(probe: Probe) -> str:
    trial = probe.trial()
    if not agree(*[trial.back(retain_graph=True) for _ in range(2)]):
        raise Breach("Two backward passes over one retained graph differ.")
    return "Two backward passes over one retained graph agree."


def _state(probe: Probe) -> str:
    alone, trial = probe.trial().back(), probe.trial()
    probe.trial(another).back()
    if not agree(alone, trial.back()):
        raise Breach("Another call between forward and backward changes the gradient.")
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(lambda: probe.trial().back()) for _ in range(4)]
    if any(run.exception() is not None or not agree(alone, run.result()) for run in runs):
        raise Breach("Four threads at once do not give what one gives.")
    return "Calls in between and beside do not disturb it."


def _structure(probe: Probe) -> str:
    if not any(below(arg) and find((arg,))[0] for arg in probe.args):
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
        if not agree(whole, list(map(plain_data, pull(*probe.seeds([out]))))):
            raise Breach("vjp does not agree with backward.")
        batch = vmap(probe.function.apply)(*[[leaf, leaf] for leaf in plain])
        if not agree([out.data] * 2, list(batch.data)):
            raise Breach("vmap does not agree with a loop.")
        if (
            probe.gradient != "nonlinear"
            and all(numbers_in(leaf.data) for leaf in leaves)
            and numbers_in(out.data)
        ):
            _push(probe, plain, whole)
    return "vjp, vmap and jvp agree with backward."


def _push(probe: Probe, leaves: list[Variable], whole: list[Any]) -> None:
    tangents = [Variable(moved(leaf.data, repeat(0.5))) for leaf in leaves]
    out, change = jvp(probe.function.apply, leaves, tangents)
    [seed] = probe.seeds([out])
    pushed = sum(map(mul, numbers_in(seed.data), numbers_in(change.data)))
    pairs = zip(whole, tangents, strict=True)
    pulled = sum(sum(map(mul, numbers_in(g), numbers_in(t.data))) for g, t in pairs)
    if abs(pushed - pulled) > 1e-9 * max(1.0, abs(pulled)):
        raise Breach(f"<w, J v> = {pushed:.6g} and <J'w, v> = {pulled:.6g}.")


def _deterministic(probe: Probe) -> str:
    if probe.function.random:
        raise Skip("It is declared random.")
    trials = [probe.trial() for _ in range(2)]
    if not agree(*[[[output.data for output in each.outputs], each.back()] for each in trials]):
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
        leaves = [v.detach().requires_grad_(space_of(v.data).differentiable) for v in variables]
        inputs = replace(inputs, leaves)
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
