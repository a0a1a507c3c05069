"""The room as a whole: what it imports, and that nothing depends on a hash or on timing."""

import os
import subprocess
import sys

PROGRAM = """
import json, sys
import pullback.text as text
import pullback.compat.afnio as hf
from pullback import tape
from pullback.tape import Variable
from pullback.text.lm import Scripted
sys.path.insert(0, {root!r})
from tests.text.helpers import answering

loaded = [name for name in ("torch", "numpy", "numba", "openai", "gepa") if name in sys.modules]
sent = []

async def answer(request):
    import asyncio, random
    await asyncio.sleep(random.random() / 200)
    return str(len(request.messages[0].text))

def rule(request):
    sent.append([m.text for m in request.messages])
    return answer(request)

lm = answering(rule)
prompt = text.Parameter("Count.", role="prompt")
first = text.ChatModule(lm, prompt, "{{x}}", role="first")
second = text.ChatModule(lm, "Again.", "{{x}}", role="second")
with tape.concurrency({limit}):
    items = [Variable(f"item {{n % 5}}", role=f"item {{n}}", requires_grad=True) for n in range(8)]
    out = tape.vmap(lambda x: second(x=first(x=x)))(items)
    out.backward(Variable([f"note {{n}}" for n in range(8)]))
grads = [[[n.data, n.origin.function] for n in p.grad] for p in (prompt, second.system, *items)]
print(json.dumps([loaded, sorted(map(str, sent)), grads, out.data]))
"""


def run(seed, limit):
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(root=root, limit=limit)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_it_imports_no_torch_and_gives_the_same_for_any_hash_and_any_concurrency():
    outputs = {run(seed, limit) for seed, limit in ((0, 1), (1, 64))}
    assert len(outputs) == 1
    assert outputs.pop().startswith("[[], ")
