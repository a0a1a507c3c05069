"""The tape beside textgrad and Trace, in one run: cost and memory a node, depth, concurrency.

Times are processor time, the least of many rounds in which all take turns; what waits is timed by
the clock. The peers live in an environment of their own, without torch:

    python3 -m venv .tape-venv && .tape-venv/bin/pip install textgrad==0.1.8 trace-opt==0.1.3.8
    PYTHONPATH=src .tape-venv/bin/python -m benchmarks.bench_tape

Without them their rows are left out.
"""

import asyncio
import csv
import gc
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from pullback.tape import Function, Variable, concurrency, vmap

RESULTS = Path(__file__).parent / "results" / "tape.csv"
ROUNDS = int(os.environ.get("ROUNDS", "15"))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_API_KEY", "none")
os.environ.setdefault("TEXTGRAD_LOG_DIR", tempfile.mkdtemp())

Chain = tuple[Callable[[int], object], Callable[[object], None]]


class Copy(Function):
    """A Function of an author, over text: as a rule of one's own over text is written."""

    @staticmethod
    def forward(ctx, text):
        ctx.save_for_backward(text)
        return Variable(text.data, role="a copy")

    @staticmethod
    def backward(ctx, feedback):
        (text,) = ctx.saved_variables
        return Variable(feedback.data, role=f"feedback to {text.role}")


def texts() -> Chain:
    def build(size: int):
        text = Variable("text", role="start", requires_grad=True)
        for _ in range(size):
            text = Copy.apply(text)
        return text

    return build, lambda text: text.backward(Variable("feedback"))


def numbers() -> Chain:
    def build(size: int):
        x, factor = Variable(1.0, requires_grad=True), Variable(0.999, requires_grad=True)
        for _ in range(size):
            x = x * factor
        return x

    return build, lambda x: x.backward()


def textgrad(log: bool) -> Chain | None:
    """The same, with or without the line that its own operations log.

    Its own `sum` cannot be measured: it doubles the text at each node.
    """
    try:
        import textgrad as tg
        from textgrad.autograd.function import BackwardContext
        from textgrad.engine import EngineLM
    except ImportError:
        return None

    class Engine(EngineLM):
        model_string, system_prompt = "none", ""

        def __init__(self):
            pass

        def generate(self, *args, **kwargs):
            return "feedback"

        __call__ = generate

    tg.set_backward_engine(Engine(), override=True)

    def hand_on(variables, response, backward_engine):
        for variable in variables:
            said = response.get_gradient_text()
            if log:
                tg.logger.info(
                    "Idempotent backward",
                    extra={"v_gradient_value": said, "summation_role": variable.role_description},
                )
            variable.gradients.add(
                tg.Variable(said, role_description=f"feedback to {variable.get_role_description()}")
            )

    def build(size: int):
        text = tg.Variable("text", role_description="start", requires_grad=True)
        for _ in range(size):
            copy = tg.Variable(
                "text", predecessors=[text], role_description="a copy", requires_grad=True
            )
            copy.set_grad_fn(BackwardContext(hand_on, [text], copy))
            text = copy
        return text

    return build, lambda text: text.backward()


def trace() -> Chain | None:
    try:
        from opto.trace import node
    except ImportError:
        return None

    def build(size: int):
        x = node(1.0, trainable=True)
        for _ in range(size):
            x = x + 1.0
        return x

    return build, lambda x: x.backward("feedback")


def cost(chain: Chain, size: int) -> tuple[float, float]:
    """Microseconds a node, forward and backward."""
    build, run = chain
    gc.collect()
    start = time.process_time()
    end = build(size)
    middle = time.process_time()
    run(end)
    return (middle - start) / size * 1e6, (time.process_time() - middle) / size * 1e6


def least(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def deepest(chain: Chain, sizes: tuple[int, ...]) -> tuple[int, str]:
    """The deepest chain that runs back, and what the next one raises."""
    best = 0
    for size in sizes:
        try:
            chain[1](chain[0](size))
        except RecursionError:
            return best, f"RecursionError at {size}"
        best = size
    return best, "none"


def memory(size: int) -> float:
    build, _ = numbers()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    end = build(size)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del end
    return used / size


def waiting(blocking_rules: bool) -> tuple[float, float]:
    """Seconds for 64 independent calls of 50 ms, forward and backward."""

    class Awaited(Function):
        @staticmethod
        async def forward(ctx, text):
            await asyncio.sleep(0.05)
            return Variable(text.data)

        @staticmethod
        async def backward(ctx, feedback):
            await asyncio.sleep(0.05)
            return feedback

    class Blocked(Function):
        blocking = True

        @staticmethod
        def forward(ctx, text):
            time.sleep(0.05)
            return Variable(text.data)

        @staticmethod
        def backward(ctx, feedback):
            time.sleep(0.05)
            return feedback

    function = Blocked if blocking_rules else Awaited
    items = [Variable(f"text {i}", requires_grad=True) for i in range(64)]
    with concurrency(64):
        start = time.perf_counter()
        results = vmap(function.apply)(items)
        middle = time.perf_counter()
        results.backward(Variable(["feedback"] * 64))
        end = time.perf_counter()
    return middle - start, end - middle


def main() -> None:
    chains = {"tape, texts": texts(), "tape, numbers": numbers()}
    for name, peer in (
        ("textgrad", textgrad(log=True)),
        ("textgrad without its log", textgrad(log=False)),
        ("trace-opt", trace()),
    ):
        if peer is not None:
            chains[name] = peer
    rows: list[tuple[str, str, str]] = []
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in chains}
    for _ in range(ROUNDS):
        for name, chain in chains.items():
            if not (name == "trace-opt" and len(rounds[name]) == 1):  # it takes long
                rounds[name].append(cost(chain, 500))
    for name in chains:
        forward, backward = least(rounds[name])
        rows.append((f"{name}: forward a node at 500", f"{forward:.2f}", "us"))
        rows.append((f"{name}: backward a node at 500", f"{backward:.2f}", "us"))
        for peer in ("textgrad", "textgrad without its log"):
            if peer in chains and name != peer:
                ratio = backward / least(rounds[peer])[1]
                rows.append((f"{name}: backward beside {peer}", f"{ratio:.2f}", "ratio"))
    for name in ("tape, texts", "tape, numbers"):
        small, large = [], []
        for _ in range(ROUNDS):
            small.append(cost(chains[name], 1_000))
            large.append(cost(chains[name], 10_000))
        for side, label in enumerate(("forward", "backward")):
            ratio = least(large)[side] / least(small)[side]
            rows.append((f"{name}: {label} a node, 10,000 beside 1,000", f"{ratio:.2f}", "ratio"))
    rows.append(("tape, numbers: memory a node", f"{memory(10_000):.0f}", "bytes"))
    for name, chain in chains.items():
        if name == "trace-opt":
            continue  # its cost is quadratic
        sizes = (500, 1_000, 3_000) if name.startswith("textgrad") else (1_000, 100_000)
        depth, failure = deepest(chain, sizes)
        rows.append((f"{name}: depth that runs back; failure", f"{depth}; {failure}", "nodes"))
    for label, blocking_rules in (("awaited", False), ("blocking", True)):
        runs = [waiting(blocking_rules) for _ in range(5)]
        forward, backward = least(runs)
        rows.append((f"tape: 64 {label} calls of 50 ms, forward", f"{forward:.3f}", "s"))
        rows.append((f"tape: 64 {label} calls of 50 ms, backward", f"{backward:.3f}", "s"))
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([("measure", "value", "unit"), *rows])
    for measure, value, unit in rows:
        print(f"{measure:<60}{value:>34} {unit}")
    print(f"recursion limit {sys.getrecursionlimit()}")


if __name__ == "__main__":
    main()
