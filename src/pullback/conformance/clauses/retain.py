"""`retain`: two backward passes over a retained graph agree."""

from collections.abc import Callable

from pullback.conformance._clause import Finding, Probe, Tensors, clause

__all__ = ["retain"]


@clause(
    why="A second backward over a retained graph must give the same gradient again. "
    "Backward must not use up what forward saved.",
    breach="when backward is run twice.",
    mend="Change and delete nothing on `ctx` in backward.",
)
def retain(probe: Probe) -> Finding:
    """Go back twice through one graph: the gradients must be the same."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    cotangents = probe.cotangents(outputs)
    pull: Callable[[], Tensors] = lambda: [  # noqa: E731 - two calls, side by side
        g.detach().clone()
        for g in probe.pull(leaves, [w.clone() for w in cotangents], outputs, retain_graph=True)
    ]
    first = pull()
    try:
        second = pull()
    except Exception as error:  # judged by its type
        return probe.failed(
            error, "A second backward over a retained graph fails",
            "Change or delete nothing on ctx in backward.", transform=False,
        )  # fmt: skip
    return probe.unlike(
        second,
        first,
        "A second backward over a retained graph gives another gradient.",
        hint="Do not change saved tensors or attributes of ctx in backward.",
        given={"w": cotangents},
        repro=[
            "ys = outs()",
            "for run in range(2):",
            "    print(run, [g.clone() for g in torch.autograd.grad(ys, xs, w, retain_graph=True, "
            "allow_unused=True) if g is not None])",
        ],
    ) or probe.holds("Two backward passes over a retained graph agree.")
