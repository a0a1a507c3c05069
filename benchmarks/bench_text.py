"""Texts beside textgrad in one run: 64 calls of 50 ms, 1,000 samples of 5 operations, feedback
over chains.

    python3 -m venv .text-venv && .text-venv/bin/pip install '.[text]' textgrad==0.1.8
    PYTHONPATH=src .text-venv/bin/python -m benchmarks.bench_text

The model is a script, so this times the engines and the operations, no model. Without textgrad its
rows are left out. The least and the most of five rounds are given, in which both take turns; a
ratio is ours over theirs, the median over the rounds. Its log to a file is left on, as it ships.
"""

import csv
import gc
import os
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

from pullback import text
from pullback.tape import Variable, vmap
from pullback.text.lm import Scripted

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_API_KEY", "none")
os.environ.setdefault("TEXTGRAD_LOG_DIR", tempfile.mkdtemp())
RESULTS = Path(__file__).parent / "results" / "text.csv"
ROUNDS = int(os.environ.get("ROUNDS", "5"))
DELAY = 0.05


def follow(request):
    asked = request.messages[-1].text
    if "<PARTS" not in asked:
        return f"answer to {asked}"
    numbers = range(asked.count("<PART id="))
    return "".join(f'<FEEDBACK id="{number}">clearer</FEEDBACK>' for number in numbers)


def calls(count: int, delay: float) -> tuple[float, float]:
    """Seconds forward and backward of independent calls, each criticised by one more call."""
    lm = Scripted(follow, delay=delay)
    asked = [Variable(f"question {n}", "question", requires_grad=True) for n in range(count)]
    start = time.perf_counter()
    answers = vmap(lambda question: text.chat(lm, question))(asked)
    middle = time.perf_counter()
    answers.backward(Variable(["too long"] * count))
    return middle - start, time.perf_counter() - middle


def samples(count: int) -> None:
    """Samples through a sum, a call, a function, a sum and an evaluator, and back."""
    lm = Scripted(follow)
    prompt = text.Parameter("Be brief. ", role="prompt")
    for number in range(count):
        item = Variable(f"item {number}", "item", requires_grad=True)
        answer = text.chat(lm, prompt + item)
        upper = text.map_python(str.upper, answer, purpose="upper")
        text.exact_match(upper + "!", "nothing").backward()
        prompt.grad = None


def feedback(length: int) -> int:
    """Characters of all feedback over a chain, at its start and at an input of each step."""
    value = start = Variable("x", role="start", requires_grad=True)
    other = text.Parameter("y", role="other")
    for _ in range(length // 2):
        value = text.split(text.concat(value, "|", other), "|")[0]
    value.backward(Variable("note"))
    return sum(len(note.data) for note in (*start.grad, *other.grad))


def sums(length: int) -> int:
    """Characters of feedback at the start of a chain of sums."""
    value = start = Variable("x", role="start", requires_grad=True)
    for _ in range(length):
        value = value + Variable("y", role="other", requires_grad=True)
    value.backward(Variable("note"))
    return sum(len(note.data) for note in start.grad)


class Textgrad:
    """The same in textgrad: its functions, and an engine that answers at once or after a while."""

    def __init__(self) -> None:
        import textgrad
        from textgrad.autograd.llm_ops import LLMCall
        from textgrad.autograd.string_based_ops import StringBasedFunction
        from textgrad.engine import EngineLM

        class Engine(EngineLM):
            model_string, system_prompt, delay = "script", "", 0.0

            def __init__(self):
                pass

            def generate(self, *args, **kwargs):
                if self.delay:
                    time.sleep(self.delay)
                return "clearer"

            __call__ = generate

        self.textgrad, self.call, self.function = textgrad, LLMCall, StringBasedFunction
        self.engine = Engine()
        textgrad.set_backward_engine(self.engine, override=True)

    def variable(self, value, role):
        return self.textgrad.Variable(value, role_description=role, requires_grad=True)

    def calls(self, count: int, delay: float) -> tuple[float, float]:
        self.engine.delay = delay
        call = self.call(self.engine)
        asked = [self.variable(f"question {n}", "question") for n in range(count)]
        start = time.perf_counter()
        answers = [call(question) for question in asked]
        middle = time.perf_counter()
        for answer in answers:
            answer.backward()
        self.engine.delay = 0.0
        return middle - start, time.perf_counter() - middle

    def samples(self, count: int) -> None:
        prompt = self.variable("Be brief. ", "prompt")
        call = self.call(self.engine)
        upper = self.function(lambda text: text.value.upper(), "upper")
        match = self.function(lambda text: str(text.value == "nothing"), "exact match")
        for number in range(count):
            answer = call(prompt + self.variable(f"item {number}", "item"))
            loud = upper({"text": answer}, "loud answer") + self.variable("!", "mark")
            match({"text": loud}, "score").backward()
            prompt.reset_gradients()

    def sums(self, length: int) -> int:
        value = start = self.variable("x", "start")
        for _ in range(length):
            value = value + self.variable("y", "other")
        value.gradients.add(self.variable("note", "note"))
        gradients = value.gradients
        self._back(value, gradients)
        return len(start.get_gradient_text())

    def _back(self, value, gradients):
        """Its backward begins by forgetting the gradient of the root, so its steps one by one."""
        order, stack, seen = [], [(value, False)], set()
        while stack:
            each, done = stack.pop()
            if done:
                order.append(each)
            elif id(each) not in seen:
                seen.add(id(each))
                stack += [(each, True), *((before, False) for before in each.predecessors)]
        value.gradients = gradients
        for each in reversed(order):
            if each.grad_fn is not None:
                each.grad_fn(backward_engine=self.engine)


def timed(run, count: int) -> float:
    start = time.perf_counter()
    run(count)
    return time.perf_counter() - start


def peak(run, count: int) -> int:
    """The most bytes that Python holds at once beyond what it held before."""
    gc.collect()
    tracemalloc.start()
    run(count)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def main() -> None:
    calls(4, 0.0)  # starts the loop and the threads
    try:
        peer = Textgrad()
    except ImportError:
        peer = None
    rounds: dict[str, list[tuple[float, float]]] = {}

    def put(name: str, ours: float, theirs: float) -> None:
        rounds.setdefault(name, []).append((ours, theirs))

    for _ in range(ROUNDS):
        both = zip(calls(64, DELAY), peer.calls(64, DELAY) if peer else (0.0, 0.0), strict=True)
        for side, pair in zip(("forward", "backward"), both, strict=True):
            put(f"64 calls of 50 ms, {side}; s", *pair)
        put(
            "1,000 samples x 5 operations, forward and back; s",
            timed(samples, 1000), timed(peer.samples, 1000) if peer else 0.0,
        )  # fmt: skip
    put(
        "1,000 samples x 5 operations, peak of traced memory; MiB",
        peak(samples, 1000) / 2**20, peak(peer.samples, 1000) / 2**20 if peer else 0.0,
    )  # fmt: skip
    put(
        "feedback over 10,000 operations beside 2,000; ratio", feedback(10_000) / feedback(2_000), 0
    )
    if peer:
        put("feedback at the start of 16 sums beside 8; ratio", sums(16) / sums(8),
            peer.sums(16) / peer.sums(8))  # fmt: skip
    write(rounds)


def write(rounds: dict[str, list[tuple[float, float]]]) -> None:
    rows = []
    for name, pairs in rounds.items():
        measure, unit = name.rsplit("; ", 1)
        ours, theirs = zip(*pairs, strict=True)
        there = any(theirs)
        ratio = statistics.median(a / b for a, b in pairs) if there else ""
        rows.append((
            measure, unit, f"{min(ours):.3g}", f"{max(ours):.3g}",
            f"{min(theirs):.3g}" if there else "", f"{max(theirs):.3g}" if there else "",
            f"{ratio:.3g}" if there else "",
        ))  # fmt: skip
        print(*rows[-1])
    head = ("measure", "unit", "least", "most", "textgrad least", "textgrad most", "ratio")
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


if __name__ == "__main__":
    main()
