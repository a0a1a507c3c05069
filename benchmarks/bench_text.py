"""Texts: 64 calls of 50 ms, 1,000 samples of 5 operations, feedback over chains.

    python -m benchmarks.bench_text

The model is a script, so this times the engine and the operations, no model.
"""

import csv
import time
import tracemalloc
from pathlib import Path

from pullback import text
from pullback.tape import Variable, vmap
from pullback.text.lm import Scripted

RESULTS = Path(__file__).parent / "results" / "text.csv"
DELAY = 0.05


def follow(request):
    asked = request.messages[-1].text
    if "<PARTS>" not in asked:
        return f"answer to {asked}"
    numbers = range(asked.count("<PART id="))
    return "".join(f'<FEEDBACK id="{number}">clearer</FEEDBACK>' for number in numbers)


def calls(count: int, delay: float) -> tuple[float, float]:
    """Seconds forward and backward of independent calls."""
    lm = Scripted(follow, delay=delay)
    asked = [Variable(f"question {n}", "question", requires_grad=True) for n in range(count)]
    start = time.perf_counter()
    answers = vmap(lambda question: text.chat(lm, question))(asked)
    middle = time.perf_counter()
    answers.backward(Variable(["too long"] * count))
    return middle - start, time.perf_counter() - middle


def samples(count: int) -> tuple[float, float]:
    """Seconds and peak bytes of samples through five operations and back, one of them a call."""
    lm = Scripted(follow)
    prompt = text.Parameter("Be brief.", role="prompt")

    def pipeline(item):
        question = text.format("{prompt} {item}?", prompt=prompt, item=item)
        answer = text.chat(lm, question, critic=text.RuleCritic([]))
        parts = text.split(text.map_python(str.upper, answer, purpose="upper"), " ", 1)
        return text.join("-", parts)

    def run(size):
        for number in range(size):
            out = pipeline(Variable(f"item {number}", "item", requires_grad=True))
            text.exact_match(out, "nothing").backward()
            prompt.grad = None

    start = time.perf_counter()
    run(count)
    seconds = time.perf_counter() - start
    tracemalloc.start()  # it slows what it traces, so fewer
    run(count // 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, peak


def feedback(length: int) -> int:
    """Characters of all feedback over a chain, at its start and at an input of each step."""
    value = start = Variable("x", role="start", requires_grad=True)
    other = text.Parameter("y", role="other")
    for _ in range(length // 2):
        value = text.split(text.concat(value, "|", other), "|")[0]
    value.backward(Variable("note"))
    return sum(len(note.data) for note in (*start.grad, *other.grad))


def main() -> None:
    calls(4, 0.0)  # starts the loop and the threads
    waited = [calls(64, DELAY) for _ in range(5)]
    seconds, peak = min(samples(1000) for _ in range(2))
    few, many = feedback(2_000), feedback(10_000)
    rows = [
        ("64 calls of 50 ms, forward", f"{min(f for f, _ in waited):.3f}", "s"),
        ("64 calls of 50 ms, backward", f"{min(b for _, b in waited):.3f}", "s"),
        ("1,000 samples x 5 operations, forward and back", f"{seconds:.2f}", "s"),
        ("1,000 samples x 5 operations, peak of traced memory", f"{peak / 2**20:.2f}", "MiB"),
        ("feedback over 10,000 operations beside 2,000", f"{many / few:.2f}", "ratio"),
    ]
    for row in rows:
        print(*row)
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([("measure", "value", "unit"), *rows])


if __name__ == "__main__":
    main()
