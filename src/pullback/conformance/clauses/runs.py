"""`deterministic`, `state` and `retain`: runs do not disturb each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pullback.conformance._probe import Probe, Tensors, same_bits
from pullback.conformance._report import Finding

__all__ = ["deterministic", "retain", "state"]

_THREADS = 4
_REPEATS = 5


def deterministic(probe: Probe) -> Finding:
    """Run three times from the same state of every generator: the bits must be the same."""
    points = probe.inputs.points()

    def once() -> Tensors:
        leaves = probe.leaves(points)
        every = probe.run(leaves)
        outputs = [every[k] for k in probe.outputs]
        found = probe.pull(leaves, probe.cotangents(outputs), outputs) if outputs else []
        return [t.detach() for t in (*every, *found)]

    first = once()
    for _ in range(2):
        again = once()
        for k, (one, other) in enumerate(zip(first, again, strict=True)):
            if not same_bits(one, other):
                return probe.broken(
                    "The same inputs and the same seed give other bits.",
                    expected=one, got=other, place=_place(probe, k, len(first)),
                    hint="Draw from torch's default generator or from a generator argument, and "
                    "keep nothing between calls that changes the result.",
                    repro=[
                        "w = [torch.ones_like(y) for y in outs()]",
                        "for run in range(3):",
                        "    print(run, outs(), torch.autograd.grad(outs(), xs, w, "
                        "allow_unused=True))",
                    ],
                )  # fmt: skip
    if probe.random:
        return probe.holds("It draws from a global generator; the same seed gives the same bits.")
    return probe.holds("The same inputs give the same bits, forward and backward.")


def _place(probe: Probe, k: int, total: int) -> str:
    count = len(probe.inputs.differentiable)
    return (
        f"output {k}" if k < total - count else f"the gradient of {probe.path(k - total + count)}"
    )


def state(probe: Probe) -> Finding:
    """Interleave two live calls, then run in several threads, and compare with calls alone."""
    points = [probe.point(0), probe.point(2)]
    shapes = [y.detach() for y in probe.evaluate(probe.leaves())]
    cotangents = probe.cotangents(shapes)
    alone = [probe.backward(x, cotangents) for x in points]
    for order in ((0, 1), (1, 0)):
        leaves = [probe.leaves(x) for x in points]
        outputs = [probe.evaluate(x) for x in leaves]
        for k in order:
            got = probe.pull(leaves[k], cotangents, outputs[k])
            place = probe.differ([g.detach() for g in got], alone[k], looser=1e3)
            if place is not None:
                return _broken(probe, "a second live call", alone[k][place], got[place], place)
    if probe.draws:
        return probe.holds("Live calls do not disturb each other (threads share the generator).")
    finding = _threads(probe, points, cotangents, alone)
    return finding or probe.holds(
        f"Two live calls and {_THREADS} threads do not disturb each other."
    )


def _threads(
    probe: Probe, points: list[Tensors], cotangents: Tensors, alone: list[Tensors]
) -> Finding | None:
    def work(number: int) -> tuple[int, Tensors] | None:
        k = number % 2
        for _ in range(_REPEATS):
            leaves = probe.leaves(points[k])
            outputs = list(probe.unseeded(*leaves))
            got = [g.detach() for g in probe.pull(leaves, cotangents, outputs)]
            place = probe.differ(got, alone[k], looser=1e3)
            if place is not None:
                return place, got
        return None

    with ThreadPoolExecutor(_THREADS) as pool:
        answers = list(pool.map(work, range(_THREADS)))
    for number, answer in enumerate(answers):
        if answer is not None:
            place, got = answer
            return _broken(probe, "another thread", alone[number % 2][place], got[place], place)
    return None


def _broken(probe: Probe, what: str, expected: object, got: object, place: int) -> Finding:
    return probe.broken(
        f"A gradient is wrong while {what} is under way: calls share state.",
        expected=expected,
        got=got,
        place=probe.path(place),
        hint="Keep what a call needs on its ctx, not on the class, a module or a global.",
        repro=[
            "w = [torch.ones_like(y) for y in outs()]",
            "print('alone', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            "first = outs()",
            "with torch.no_grad(): args = torch.utils._pytree.tree_map(lambda a: a.detach() * 1.5 "
            "if isinstance(a, torch.Tensor) and a.requires_grad else a, args)",
            "outs(); print('with a second call live', torch.autograd.grad(first, xs, w, "
            "allow_unused=True))",
        ],
    )


def retain(probe: Probe) -> Finding:
    """Go back twice through one graph: the gradients must be the same."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    cotangents = probe.cotangents(outputs)
    pull: Callable[[], Tensors] = lambda: [  # noqa: E731 - two calls, side by side
        g.detach().clone() for g in probe.pull(leaves, cotangents, outputs, retain_graph=True)
    ]
    first = pull()
    try:
        second = pull()
    except Exception as error:  # judged by its message
        return probe.failed(
            error, "A second backward over a retained graph fails",
            "Change or delete nothing on ctx in backward.",
        )  # fmt: skip
    place = probe.differ(second, first, looser=1e3)
    if place is None:
        return probe.holds("Two backward passes over a retained graph agree.")
    return probe.broken(
        "A second backward over a retained graph gives another gradient.",
        expected=first[place],
        got=second[place],
        place=probe.path(place),
        hint="Do not change saved tensors or attributes of ctx in backward.",
        repro=[
            "ys = outs(); w = [torch.ones_like(y) for y in ys]",
            "for run in range(2):",
            "    print(run, [g.clone() for g in torch.autograd.grad(ys, xs, w, retain_graph=True, "
            "allow_unused=True) if g is not None])",
        ],
    )
