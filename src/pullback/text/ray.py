"""A batch's evaluation and backward over the workers of a Ray cluster.

The pipeline runs on the workers; its calls of models do not. A model is not sent to a worker but
stands there by a number, and what it is asked is asked here, in this process. So keys never leave
it, the journal and the budget of a `pullback.text.lm.Run` hold for the whole cluster, and a worker
that dies costs nothing twice: when another takes its samples over, what they had asked is known.
"""

import asyncio
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, GraphError, ProgramError
from pullback.internal._extras import require
from pullback.tape import Feedback, Variable
from pullback.tape import backward as run_backward
from pullback.tape._concurrency import call_within_limit, run
from pullback.tape._extra import Origin
from pullback.tape._node import count
from pullback.tape._place import place, within
from pullback.text import _prompts
from pullback.text._critic import current_critic, use_critic
from pullback.text._errors import read_error, write_error
from pullback.text._failure import tolerate, tolerating
from pullback.text._module import Module
from pullback.text._sample import Scored, score_sample, text_parameters
from pullback.text.lm import LM, Completion, Request, Tool

__all__ = ["Scored", "backward", "evaluate"]


def evaluate(
    module: Module,
    metric: Callable[[Any, Any], Any],
    samples: Sequence[Any],
    *,
    chunk: int = 8,
    attempts: int = 3,
) -> list[Scored]:
    """Score samples on the workers of Ray.

    Arguments:
        module: the pipeline.
        metric: given the module and a sample, gives an `Evaluation` or a finite number.
        samples: the data.
        chunk: how many samples a task of Ray takes at once; they run in threads, since they wait.
        attempts: how many workers may die over the same samples before it is given up.

    Returns:
        What each sample gave, in their order.

    Raises:
        ArgumentError: Ray is not started, or a number makes no sense.
        ProgramError: the metric raised, or too many workers died.
        MissingExtraError: ray is not installed.

    Example:
        ``Measure(module, metric, held, evaluate=pullback.text.ray.evaluate)`` measures so.
    """
    return _Batch(module, metric, samples, chunk, attempts).run(learn=False)


def backward(
    module: Module,
    metric: Callable[[Any, Any], Any],
    samples: Sequence[Any],
    *,
    chunk: int = 8,
    attempts: int = 3,
) -> list[Scored]:
    """Score samples on the workers of Ray, and run feedback back to the module's parameters.

    The feedback is added to the parameters here when all samples are done, in the order of the
    samples, whatever the order in which they ended; if one fails, no parameter is told anything.
    Arguments, results and errors are those of `evaluate`.
    """
    batch = _Batch(module, metric, samples, chunk, attempts)
    found = batch.run(learn=True)
    told = [
        (parameter, [note for each in found for note in each.said.get(path, ())])
        for path, parameter in batch.parameters.items()
    ]
    told = [(parameter, notes) for parameter, notes in told if notes]
    if told:
        run_backward([each for each, _ in told], [Feedback(notes) for _, notes in told])
    return found


class _Batch:
    """Samples on their way through the workers."""

    def __init__(
        self, module: Module, metric: Any, samples: Sequence[Any], chunk: int, attempts: int
    ) -> None:
        self.ray: Any = require("ray", extra="ray", purpose="text.ray")
        if not isinstance(module, Module) or not callable(metric):
            raise ArgumentTypeError(
                "Ray is given a Module and a metric.",
                given=f"{type(module).__name__}, {type(metric).__name__}",
            )
        if min(chunk, attempts) < 1 or not len(samples):
            raise ArgumentError("Samples, a chunk of them and attempts are one or more.",
                                given=f"{len(samples)} samples, {chunk=}, {attempts=}")  # fmt: skip
        if not self.ray.is_initialized():
            raise ArgumentError(
                "Ray is not started.",
                mend="ray.init() here, or ray.init(address=...) for a cluster.",
            )
        self.module, self.metric, self.samples = module, metric, samples
        self.parameters = text_parameters(module)
        self.chunk, self.attempts = chunk, attempts
        self.models: list[LM] = []
        self._answers: dict[Any, asyncio.Task[Any]] = {}

    def run(self, learn: bool) -> list[Scored]:
        ray = self.ray
        if learn and not self.parameters:
            raise ArgumentError("The module has no text that may be changed.")
        ambient = (_prompts._replaced.get(), current_critic())
        shared = ray.put(self._pack((self.module, self.metric, ambient, learn)))
        starts = range(0, len(self.samples), self.chunk)
        packed = [self._pack(list(self.samples[start : start + self.chunk])) for start in starts]
        known = [(lm.model, lm.price) for lm in self.models]
        mailbox = ray.remote(num_cpus=0, max_concurrency=10_000)(_Mailbox).remote()
        task = ray.remote(max_retries=self.attempts - 1)(_work)
        tasks = [
            task.remote(shared, part, start, known, mailbox)
            for start, part in zip(starts, packed, strict=True)
        ]
        try:
            rows = run(self._collect(tasks, mailbox))
        except ray.exceptions.RayError as error:
            raise ProgramError(
                "The workers died over the same samples.", given=f"{type(error).__name__}",
                expected=f"{self.attempts} attempts to be enough", mend="Look into Ray's log.",
            ) from None  # fmt: skip
        finally:
            for each in tasks:
                ray.cancel(each, force=False)
            ray.kill(mailbox)
        with tolerating() as failures:
            for row in (row for part in rows for row in part):
                failures.count(row["asked"], row["failures"])
        return [self._read(row) for part in rows for row in part]

    async def _collect(self, tasks: list[Any], mailbox: Any) -> list[Any]:
        serving = asyncio.ensure_future(self._serve(mailbox))
        results = asyncio.gather(*(_awaited(task) for task in tasks))
        try:
            await asyncio.wait({serving, results}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():  # it ends by an error only
                serving.result()
            rows = await results
        finally:
            for each in (serving, results, *self._answers.values()):
                each.cancel()
            await asyncio.gather(serving, results, return_exceptions=True)
        for row in (row for part in rows for row in part):
            if "error" in row:
                raise read_error(row["error"])
        return rows

    async def _serve(self, mailbox: Any) -> None:
        """Ask the models what the workers ask, each thing once."""
        replies: set[asyncio.Task[Any]] = set()
        while True:
            for letter, key, request in await _awaited(mailbox.take.remote()):
                if key not in self._answers:
                    self._answers[key] = asyncio.ensure_future(self._ask(key, request))
                reply = asyncio.ensure_future(_reply(mailbox, letter, self._answers[key]))
                replies.add(reply)
                reply.add_done_callback(replies.discard)

    async def _ask(self, key: tuple[Any, ...], request: Mapping[str, Any]) -> dict[str, Any]:
        where, model, _, occurrence = key
        try:
            asked = _read_request(request)
            with within(("ray", *where, occurrence)):
                answer = await call_within_limit(self.models[model].ask, (asked,), True)
        except Exception as error:
            return {"error": write_error(error)}
        return answer.to_dict()

    def _pack(self, value: Any) -> bytes:
        """The value for a worker, its models by their numbers."""
        pickler = self.ray.cloudpickle.CloudPickler

        class Packer(pickler):  # type: ignore[invalid-inheritance]
            def persistent_id(packer, each: Any) -> Any:  # noqa: N805 - self is the batch
                if not isinstance(each, LM):
                    return None
                if not any(each is lm for lm in self.models):
                    self.models.append(each)
                return next(number for number, lm in enumerate(self.models) if lm is each)

            def reducer_override(packer, each: Any) -> Any:  # noqa: N805
                if isinstance(each, Variable):
                    return _reduced(each)
                return super().reducer_override(each)

        file = io.BytesIO()
        Packer(file).dump(value)
        return file.getvalue()

    def _read(self, row: Mapping[str, Any]) -> Scored:
        """What a worker has sent; the nodes that wrote its notes are told apart from all others."""
        nodes: dict[int, int] = {}

        def note(entry: Mapping[str, Any]) -> Variable:
            made = Variable(entry["text"], entry["role"])
            if entry["origin"] is not None:
                function, role, node = entry["origin"]
                nodes.setdefault(node, next(count))
                made._more().origin = Origin(function, role, nodes[node])
            return made

        said = {path: tuple(map(note, notes)) for path, notes in row["said"].items()}
        return Scored(row["score"], row["failure"], said)


async def _awaited(reference: Any) -> Any:
    return await reference


async def _reply(mailbox: Any, letter: int, answer: asyncio.Task[Any]) -> None:
    await _awaited(mailbox.answer.remote(letter, await answer))


class _Mailbox:
    """An actor between workers, which ask, and the process that has the models."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._count = itertools.count()

    async def ask(self, key: Any, request: Any) -> Any:
        """The answer to a request."""
        letter = next(self._count)
        future = self._waiting[letter] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((letter, key, request))
        try:
            return await future
        finally:
            del self._waiting[letter]

    async def take(self) -> list[Any]:
        """What was asked since; waits for something."""
        found = [await self._asked.get()]
        while not self._asked.empty():
            found.append(self._asked.get_nowait())
        return found

    async def answer(self, letter: int, answer: Any) -> None:
        """Hand an answer to who asked, if it lives."""
        future = self._waiting.get(letter)
        if future is not None and not future.done():
            future.set_result(answer)


_asked: ContextVar[Counter[Any]] = ContextVar("pullback.text.ray.asked")
"""How often a sample that is run here has asked the same at the same place."""


class _Distant(LM):
    """A model of the process that sent the samples."""

    def __init__(self, number: int, model: str, price: Any, mailbox: Any) -> None:
        self.number, self.model, self.price, self._mailbox = number, model, price, mailbox

    async def answer(self, request: Request) -> Completion:
        """Ask there."""
        asked, same = _asked.get(), (place(), self.number, request.digest(self.model))
        key = (*same, asked[same])
        asked[same] += 1
        answer = await _awaited(self._mailbox.ask.remote(key, request.to_dict()))
        if "error" in answer:
            raise read_error(answer["error"])
        return Completion.from_dict(answer)


def _work(
    shared: bytes, part: bytes, start: int, known: list[tuple[str, Any]], mailbox: Any
) -> list[dict[str, Any]]:
    """Run on a worker: some samples, at once; what each gave, as plain data."""
    models = [_Distant(number, *each, mailbox) for number, each in enumerate(known)]
    module, metric, ambient, learn = _unpack(shared, models)
    samples = _unpack(part, models)
    parameters = text_parameters(module) if learn else None

    def one(number: int) -> dict[str, Any]:
        _asked.set(Counter())
        try:
            with tolerate(1.0) as failures, within(("sample", start + number)):
                row = _row(score_sample(metric, module, samples[number], parameters))
            return {**row, "asked": failures.asked, "failures": failures.causes}
        except Exception as error:
            return {"error": write_error(error)}

    with _around(*ambient), ThreadPoolExecutor(len(samples)) as threads:
        running = [threads.submit(copy_context().run, one, n) for n in range(len(samples))]
        return [each.result() for each in running]


@contextmanager
def _around(prompts: Any, critic: Any) -> Iterator[None]:
    """What the process that sent the samples had chosen for all inside."""
    with ExitStack() as stack:
        token = _prompts._replaced.set(prompts)
        stack.callback(_prompts._replaced.reset, token)
        if critic is not None:
            stack.enter_context(use_critic(critic))
        yield


def _row(scored: Scored) -> dict[str, Any]:
    said = {
        path: [
            {"text": note.data, "role": note.role, "origin": note.origin and tuple(note.origin)}
            for note in notes
        ]
        for path, notes in scored.said.items()
    }
    return {"score": scored.score, "failure": scored.failure, "said": said}


def _unpack(packed: bytes, models: Sequence[LM]) -> Any:
    ray: Any = require("ray", extra="ray", purpose="text.ray")

    class Unpacker(ray.cloudpickle.pickle.Unpickler):  # type: ignore[invalid-inheritance]
        def persistent_load(self, pid: Any) -> Any:
            return models[pid]

    return Unpacker(io.BytesIO(packed)).load()


def _reduced(variable: Variable) -> Any:
    """A leaf for a worker: its value, without what was said of it."""
    if variable.grad_fn is not None:
        raise GraphError(
            "A value with a history was to be sent to a worker of Ray, where none is.",
            given=repr(variable)[:80], mend="Pass its detach(), or make it inside the metric.",
        )  # fmt: skip
    whole = (type(variable), variable.data, variable.role, variable.requires_grad, variable.name)
    return _made, whole


def _made(
    kind: type[Variable], data: Any, role: str, requires_grad: bool, name: str | None
) -> Variable:
    made = kind.__new__(kind)
    Variable.__init__(made, data, role, requires_grad, name)
    return made


def _read_request(value: Mapping[str, Any]) -> Request:
    tools = [Tool(**tool["function"]) for tool in value.get("tools", ())]
    return Request.of(
        value["messages"], **value["options"], schema=value.get("schema"), tools=tools
    )
