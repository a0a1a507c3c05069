"""The tape beside textgrad and Trace, in one run: cost and memory a node, depth, concurrency.

Each figure is the median of several runs, each in a process of its own. In a run all take turns,
and a time is processor time, the least of many rounds, or by the clock for what waits. Python's
cyclic collector is left on; what the peers' imports left on the heap (millions of objects) is
frozen before, so that nobody is charged for walking it. The peers live in an environment of their
own, without torch:

    python3 -m venv .tape-venv && .tape-venv/bin/pip install textgrad==0.1.8 trace-opt==0.1.3.8
    PYTHONPATH=src .tape-venv/bin/python -m benchmarks.bench_tape

Without them their rows are left out.
"""

import asyncio
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from pullback.tape import Function, Variable, vmap

RESULTS = Path(__file__).parent / "results" / "tape.csv"
ROUNDS = int(os.environ.get("ROUNDS", "15"))
RUNS = int(os.environ.get("RUNS", "5"))
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


def chains() -> dict[str, Chain]:
    """All chains that can be had here; what importing the peers left behind is frozen."""
    found = {
        "tape, texts": texts(), "tape, numbers": numbers(), "textgrad": textgrad(log=True),
        "textgrad without its log": textgrad(log=False), "trace-opt": trace(),
    }  # fmt: skip
    gc.collect()
    gc.freeze()
    return {name: chain for name, chain in found.items() if chain is not None}


# Each figure is measured by a function of no arguments, in a process of its own.


def cost_beside_peers() -> dict[str, float]:
    """Microseconds a node at 500, and our backward beside textgrad's."""
    measured = chains()
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in measured}
    for number in range(ROUNDS):
        for name, chain in measured.items():
            if name != "trace-opt" or number == 0:  # it takes long
                rounds[name].append(cost(chain, 500))
    result = {}
    for name in measured:
        result[f"{name}: forward a node at 500; us"], backward = least(rounds[name])
        result[f"{name}: backward a node at 500; us"] = backward
        for peer in ("textgrad", "textgrad without its log"):
            if peer in measured and name.startswith("tape"):
                result[f"{name}: backward beside {peer}; ratio"] = backward / least(rounds[peer])[1]
    return result


def cost_at_length() -> dict[str, float]:
    """A node in a chain of 10,000 beside one in a chain of 1,000, and what it takes in memory."""
    result = {}
    for name, chain in (("tape, texts", texts()), ("tape, numbers", numbers())):
        rounds = []
        for _ in range(ROUNDS):  # as many nodes on both sides, one right after the other
            short = [cost(chain, 1_000) for _ in range(10)]
            rounds.append((short, cost(chain, 10_000)))
        for side, label in enumerate(("forward", "backward")):
            ratios = [
                long[side] / statistics.mean(each[side] for each in short) for short, long in rounds
            ]
            result[f"{name}: {label} a node, 10,000 beside 1,000; ratio"] = statistics.median(
                ratios
            )
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        end = chain[0](10_000)
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        result[f"{name}: memory a node; bytes"] = used / 10_000
        del end
    return result


def depth() -> dict[str, float]:
    """The deepest chain that runs back at the default recursion limit, and the first that fails."""
    result = {}
    for name, chain in chains().items():
        sizes = (500, 1_000, 3_000, 100_000)
        if name == "trace-opt":  # its cost is quadratic: 100,000 would take hours
            sizes = sizes[:3]
        for size in sizes:
            try:
                chain[1](chain[0](size))
            except RecursionError:
                result[f"{name}: first depth that fails, with RecursionError; nodes"] = size
                break
            result[f"{name}: deepest that runs back; nodes"] = size
    return result


def waiting() -> dict[str, float]:
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

    result = {}
    for label, function in (("awaited", Awaited), ("blocking", Blocked)):
        rounds = []
        for _ in range(ROUNDS):
            items = [Variable(f"text {i}", requires_grad=True) for i in range(64)]
            start = time.perf_counter()
            results = vmap(function.apply)(items)
            middle = time.perf_counter()
            results.backward(Variable(["feedback"] * 64))
            rounds.append((middle - start, time.perf_counter() - middle))
        for side, seconds in zip(("forward", "backward"), least(rounds), strict=True):
            result[f"tape: 64 {label} calls of 50 ms, {side}; s"] = seconds
    return result


FIGURES = {f.__name__: f for f in (cost_beside_peers, cost_at_length, depth, waiting)}


def main() -> None:
    rows = [("measure", "value", "unit")]
    for name in FIGURES:
        runs: list[dict[str, float]] = []
        for _ in range(1 if name == "depth" else RUNS):
            answer = subprocess.run(
                [sys.executable, "-m", "benchmarks.bench_tape", name],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            runs.append(json.loads(answer.stdout.splitlines()[-1]))
        for key in runs[0]:
            measure, _, unit = key.rpartition("; ")
            value = statistics.median(run[key] for run in runs)
            shown = (
                f"{value:.0f}"
                if value >= 100
                else f"{value:.3f}"
                if unit == "s"
                else f"{value:.2f}"
            )
            rows.append((measure, shown, unit))
            print(f"{measure:<64}{shown:>10} {unit}", flush=True)
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(FIGURES[sys.argv[1]]()))
    else:
        main()
