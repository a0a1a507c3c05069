"""`cuda-graph`: capture and replay equal eager (with a GPU)."""

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause

__all__ = ["cuda_graph"]


@clause(
    why="Captured graphs replay without Python. Whatever depended on the values at "
    "capture is frozen into every later step.",
    breach="when a graph is replayed at other inputs.",
    mend="Allocate nothing on the host, synchronise nothing (.item(), .cpu(), nonzero) and "
    "read no Python state that changes between replays.",
)
def cuda_graph(probe: Probe) -> Finding:
    """Capture forward and backward in a CUDA graph, replay at other inputs, and compare."""
    # Not moved there: its author may have written it, or what it holds may lie, elsewhere.
    if not any(value.is_cuda for value in probe.inputs.values):
        return probe.skipped("Its inputs lie on no CUDA device.")
    if probe.draws:
        return probe.skipped("It draws random numbers, which a graph draws in another order.")
    start, other = probe.point(0), probe.point(2)
    shapes = [y.detach() for y in probe.evaluate(probe.leaves(start))]
    cotangents = probe.cotangents(shapes)
    expected = [t.detach() for t in _step(probe, probe.leaves(other), cotangents)]
    try:
        got = _replayed(probe, start, other, cotangents)
    except Exception as error:  # judged by its type
        torch.cuda.synchronize()
        # A capture that fails leaves generators as if it went on; the next that ends ends that too.
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda")
        return probe.failed(error, "Capture is refused")
    said = "A replayed CUDA graph gives other numbers than eager."
    wrong = probe.unlike(got, expected, said, outputs=len(shapes), looser=1e4)
    return wrong or probe.holds("Capture and replay at other inputs equal eager.")


def _step(probe: Probe, leaves: Tensors, cotangents: Tensors) -> Tensors:
    outputs = list(probe.unseeded(*leaves))
    return [*outputs, *probe.pull(leaves, cotangents, outputs)]


def _replayed(probe: Probe, start: Tensors, other: Tensors, cotangents: Tensors) -> Tensors:
    """Warm up on a side stream, capture at ``start``, replay at ``other``."""
    leaves = probe.leaves(start)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            _step(probe, leaves, cotangents)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _step(probe, leaves, cotangents)
    with torch.no_grad():
        for leaf, value in zip(leaves, other, strict=True):
            leaf.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return [t.detach().clone() for t in captured]
