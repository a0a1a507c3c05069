"""`deterministic`: same inputs, same bits, or randomness from a generator that can be seeded."""

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.comparison._values import same_bits
from pullback.conformance.probing._unwritten import tell_unwritten

__all__ = ["deterministic"]

_REPRO = [
    "w = [torch.ones_like(y) for y in outs()]",
    "for run in range(3):",
    "    print(run, outs(), torch.autograd.grad(outs(), xs, w, allow_unused=True))",
]


@clause(
    why="The same inputs and seed must give the same bits, or a run cannot be repeated "
    "and a fault cannot be pinned down.",
    breach="as other bits with every generator put back, and as memory that nothing has written.",
    mend="torch's generators; no state between calls; every entry of what is allocated written.",
    gradient=False,
)
def deterministic(probe: Probe) -> Finding:
    """Run three times from the same state of every generator: the bits must be the same."""
    if probe.private:
        return _private(probe)
    if probe.unwritten:
        return tell_unwritten(probe, probe.unwritten, probe.unwritten)
    first = probe.answer()
    outputs = len(first) - len(probe.inputs.differentiable)
    for _ in range(2):
        again = probe.answer()
        for k, (one, other) in enumerate(zip(first, again, strict=True)):
            if not same_bits(one, other):
                return probe.broken(
                    "The same inputs and the same seed give other bits.",
                    expected=one, got=other, place=probe.place(k, outputs), said="",
                    hint="Draw from torch's default generator or from a generator argument, and "
                    "keep nothing between calls that changes the result.",
                    repro=_REPRO,
                )  # fmt: skip
    if probe.random:
        return probe.holds("It draws from a global generator; the same seed gives the same bits.")
    if probe.fault:
        return probe.holds("The same inputs give the same bits forward; backward does not run.")
    return probe.holds("The same inputs give the same bits, forward and backward.")


def _private(probe: Probe) -> Finding:
    """It draws, and no seed of the caller's reaches what it draws from."""
    first, second = probe.run(probe.leaves()), probe.run(probe.leaves(), seeded=False)
    return probe.broken(
        "It draws from a generator of its own, which torch.manual_seed does not reach: the same "
        "inputs and seed give other bits. The other clauses judge it with the generator put back.",
        expected=first[0] if first else "", got=second[0] if second else "",
        hint="Draw from torch's default generator, or take the generator as an argument.",
        repro=_REPRO,
    )  # fmt: skip
