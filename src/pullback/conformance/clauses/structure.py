"""`structure`: dicts, lists, tuples and keyword arguments are differentiated, or refused."""

from dataclasses import replace

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.cause._wrong_derivative import along_a_line
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.inputs._tree import tensors

__all__ = ["structure"]


@clause(
    why="Tensors inside dicts, lists and keyword arguments look differentiable. torch "
    "passes them through as constants and drops their gradient.",
    breach="against finite differences for each nested tensor.",
    mend="Pass tensors as arguments themselves, or derive from `pullback.Function`.",
    gradient=False,
)
def structure(probe: Probe) -> Finding:
    """Compare gradients of tensors inside dicts, lists, tuples and keywords with differences."""
    every = range(len(probe.inputs.values))
    nested = [k for k in every if probe.inputs.nested(k) and is_continuous(probe.inputs.values[k])]
    if not nested:
        return probe.skipped("No argument is nested or given by keyword.")
    if probe.inputs.declared:  # then one without a mark is a constant on purpose
        given = tensors((probe.inputs.args, dict(probe.inputs.kwargs)))
        nested = [k for k in nested if given[k].requires_grad]
    if not nested:
        return probe.skipped("No nested argument requires a gradient, as others do.")
    settled = 0
    for k in nested:
        # With this one differentiated, and every floating output.
        chosen = replace(probe, inputs=probe.inputs.with_differentiable([k]))
        every = enumerate(chosen.run([x.clone() for x in chosen.inputs.points()]))
        floats = tuple(j for j, y in every if is_continuous(y))
        chosen = replace(chosen, outputs=probe.outputs or floats)
        trial = judge(chosen)
        settled += trial.is_told
        silent = trial.value == 0.0
        if trial.is_wrong and (silent or probe.intent == "exact"):
            there = replace(chosen, inputs=chosen.inputs.with_points(trial.points))
            return there.broken(
                f"The gradient of {probe.inputs.paths[k]} is silently "
                f"{'dropped' if silent else 'wrong'}.",
                expected=f"{trial.estimate.value:.8g} (finite differences)",
                got=f"{trial.value:.8g} (backward)",
                place=probe.inputs.paths[k],
                hint="torch.autograd.Function differentiates only tensors that are arguments "
                "themselves: pass them so, or write Function from pullback, which looks inside.",
                given={"w": trial.weights, "v": trial.step},
                repro=along_a_line(),
            )
    if not settled:
        return probe.skipped("Finite differences do not settle for any nested argument.")
    return probe.holds(f"{settled} nested or keyword tensor(s) are differentiated.")
