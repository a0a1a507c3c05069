"""Runs a small program with a journal again and again, and kills it at random points.

``python -m tests.text.lm.killing JOURNAL KILLS SEED URL...`` prints JSON, for each server: the
texts of each run when it was left alone, what each resumed run found in doubt, and how often it was
killed. It forks, so that a run costs milliseconds.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from pullback.text.lm import Journal, OpenAI, Run
from pullback.text.prices import Price

CALLS = 12


def model(url: str) -> OpenAI:
    """Made once, before any fork: it imports much, and reads certificates."""
    import openai.resources.chat.completions  # noqa: F401 - the SDK imports it at the first call

    return OpenAI("m", base_url=url, api_key="sk-killing-0123", timeout=10, price=Price(1, 1))


async def program(lm: OpenAI) -> list[str]:
    texts: list[str] = []
    for step in range(CALLS // 6):
        # Five of a kind and one that depends on them: equal requests have answers of their own.
        same = [lm.acomplete(f"step {step}") for _ in range(5)]
        answers = sorted(answer.text for answer in await asyncio.gather(*same))
        texts += answers
        texts.append((await lm.acomplete(f"join {answers}")).text)
    return texts


def run(lm: OpenAI, path: str, out: str) -> None:
    with Run(path):
        texts = asyncio.run(program(lm))
    Path(out).write_text(json.dumps(texts))


def attempt(lm: OpenAI, path: str, out: str, limit: float) -> bool:
    """Run in a child; whether it was killed, because the time was over before it ended."""
    child = os.fork()
    if not child:
        try:
            run(lm, path, out)
        finally:
            os._exit(1)
    begin = time.monotonic()
    while time.monotonic() - begin < limit and not os.path.exists(out):
        time.sleep(0.0005)
    killed = not os.path.exists(out)
    if killed:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return killed


def killed_at(url: str, journal: str, kills: int) -> dict[str, object]:
    lm = model(url)
    begin = time.monotonic()
    attempt(lm, f"{journal}.whole", f"{journal}.whole.json", 60)
    span = time.monotonic() - begin
    killed, doubts, number = 0, [], 0
    texts = [json.loads(Path(f"{journal}.whole.json").read_text())]
    while killed < kills:
        path, out = f"{journal}.{number}", f"{journal}.{number}.json"
        while not os.path.exists(out):
            killed += attempt(lm, path, out, random.uniform(0, span))
            if os.path.exists(path):
                with Journal(path) as found:
                    doubts.append(sum(call.answer is None for call in found.calls()))
        texts.append(json.loads(Path(out).read_text()))
        number += 1
    return {"texts": texts, "doubts": doubts, "killed": killed, "runs": len(texts)}


if __name__ == "__main__":
    where, count, start, *urls = sys.argv[1:]
    random.seed(int(start))
    found = [killed_at(url, f"{where}-{n}", int(count)) for n, url in enumerate(urls)]
    print(json.dumps(found))
