"""A plugin of pytest: the models of the tests misbehave, whatever the tests expect of them.

``MISBEHAVING=SEED pytest -p tests.text.misbehaving tests/text/...`` runs tests that were written
for models that behave. What a test expects of an answer need not hold then, so what the test itself
raises is no fault, nor is an error that says what a model did (`ModelError`) or that the budget is
used up. Anything else that comes out of pullback is, and fails.
"""

import os
import re
import weakref
from pathlib import Path

import pytest

import pullback
from pullback.errors import BudgetError, ModelError, ProgramError
from pullback.text.lm import Chunk, Misbehaving, OpenAI, Scripted

OURS = str(Path(pullback.__file__).parent)
SEED = int(os.environ.get("MISBEHAVING", "0"))
SHARE = 0.2
wrapped: "weakref.WeakKeyDictionary[object, Misbehaving]" = weakref.WeakKeyDictionary()
met = Misbehaving(Scripted(["never asked"])).met


def spoil(model):
    """Let every answer of a class of models go through `Misbehaving`, each model's own."""
    answer, stream = model.answer, model.stream_answer

    def way(self):
        return wrapped.setdefault(self, Misbehaving(self, SHARE, SEED, silence=0.0))

    async def spoilt(self, request):
        async def ask(request):
            completion = await answer(self, request)
            yield Chunk(completion.text, completion)

        *_, last = [chunk async for chunk in way(self).step(request, ask)]
        return last.completion

    async def spoilt_stream(self, request):
        ask = lambda request: stream(self, request)  # noqa: E731
        async for chunk in way(self).step(request, ask):
            yield chunk

    model.answer = spoilt
    if model is OpenAI:  # a script streams what it answers
        model.stream_answer = spoilt_stream


def pytest_configure():
    spoil(Scripted)
    spoil(OpenAI)


def is_fault(error):
    """Whether it is neither the test's own nor said of a model."""
    if isinstance(error.value, ModelError | BudgetError):
        return False
    where = [str(entry.path) for entry in error.traceback]
    if isinstance(error.value, ProgramError):  # of another process: where it was is told in words
        where += re.findall(r'File "([^"]+)"', str(error.value))
    own = [path for path in where if path.startswith(OURS) or "/tests/" in path]
    return bool(own) and own[-1].startswith(OURS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        if not isinstance(error, Exception | pytest.fail.Exception):
            raise
        if is_fault(pytest.ExceptionInfo.from_exception(error)):
            raise


def pytest_terminal_summary(terminalreporter):
    for model in wrapped.values():
        met.update(model.met)
    terminalreporter.write_line(f"met: {sum(met.values())} bad answers")
