"""Runs a small program with a journal again and again, and kills it at random points.

``python -m tests.text.lm.killing URL JOURNAL KILLS SEED`` prints JSON: the texts of the run that was
left alone at last, what each resumed run found in doubt, and how often it was killed. It forks, so
that a run costs milliseconds.
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

CALLS = 24


async def program(url: str) -> list[str]:
    lm = OpenAI("m", base_url=url, api_key="sk-killing-0123", timeout=10, price=Price(1, 1))
    texts: list[str] = []
    for step in range(CALLS // 6):
        # Five of a kind and one that depends on them: equal requests have answers of their own.
        same = [lm.acomplete(f"step {step}") for _ in range(5)]
        answers = sorted(answer.text for answer in await asyncio.gather(*same))
        texts += answers
        texts.append((await lm.acomplete(f"join {answers}")).text)
    return texts


def run(url: str, path: str, out: str) -> None:
    with Run(path):
        texts = asyncio.run(program(url))
    Path(out).write_text(json.dumps(texts))


def main(url: str, journal: str, kills: int, seed: int) -> None:
    random.seed(seed)
    killed, doubts, texts, number = 0, [], [], 0
    span = 0.5
    while killed < kills:
        path, out = f"{journal}.{number}", f"{journal}.{number}.json"
        while not os.path.exists(out):
            child = os.fork()
            if not child:
                try:
                    run(url, path, out)
                finally:
                    os._exit(1)
            begin = time.monotonic()
            limit = random.uniform(0, span)
            while time.monotonic() - begin < limit and not os.path.exists(out):
                time.sleep(0.0005)
            if not os.path.exists(out):
                os.kill(child, signal.SIGKILL)
                killed += 1
            os.waitpid(child, 0)
            if os.path.exists(path):
                with Journal(path) as found:
                    doubts.append(sum(call.answer is None for call in found.calls()))
        texts.append(json.loads(Path(out).read_text()))
        number += 1
    print(json.dumps({"texts": texts, "doubts": doubts, "killed": killed, "runs": number}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
