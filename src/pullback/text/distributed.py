"""A batch of samples over the workers of a `concurrent.futures.Executor`, on this machine or many.

Such are `ProcessPoolExecutor`, loky's, Dask's ``client.get_executor()``, mpi4py's pool, and
`pullback.text.ray.RayExecutor`. The pipeline and its metric run there. The models stay here: a
worker asks over a connection, and this process answers. So keys never leave it, the journal and the
budget of a `pullback.text.lm.Run` hold for all, and a worker that dies costs nothing twice: when
another takes its samples over, what they had asked is known.
"""

import asyncio
import io
import json
import pickle
import secrets
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from multiprocessing import ProcessError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from pullback import errors
from pullback.errors import (
    ArgumentError,
    GraphError,
    ProgramError,
    PullbackError,
)
from pullback.internal._arguments import check_counts, checked
from pullback.tape import Feedback, Origin, Variable
from pullback.tape import backward as run_backward
from pullback.tape._concurrency import call_within_limit, place, run, within
from pullback.tape._node import count
from pullback.text import _prompts
from pullback.text._critic import _critic, current_critic
from pullback.text._failure import tolerate, tolerating
from pullback.text._module import Module
from pullback.text._sample import Scored, at_once, score_sample, text_parameters
from pullback.text.lm import LM, Completion, Request, Tool, scrub

__all__ = [
    "Scored",
    "Workers",
]


_FIELDS = (
    "given", "expected", "mend", "transient", "retry_after", "status", "may_be_billed",
)  # fmt: skip


def _write_error(error: Exception) -> dict[str, Any]:
    """An error as JSON, keys taken out: what ours says; of another, where it was raised."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__]
    if not isinstance(error, PullbackError):
        where = "".join(traceback.format_exception(error)[-4:])
        what = "A program failed in another process."
        return {"kind": "ProgramError", "what": what, "given": scrub(where)}
    told = {name: getattr(error, name) for name in _FIELDS if getattr(error, name, None)}
    told = {name: scrub(each) if isinstance(each, str) else each for name, each in told.items()}
    return {"kind": kinds[0], "what": scrub(error.what), **told}


def _read_error(value: Mapping[str, Any]) -> PullbackError:
    """The error that `_write_error` wrote; one of a kind that is not known as `ProgramError`."""
    kind = value["kind"]
    cls = getattr(errors, kind) if kind in errors.__all__ else ProgramError
    return cls(value["what"], **{name: value[name] for name in _FIELDS if name in value})


@checked
class Workers:
    """The workers of an executor, for batches of samples.

    Arguments:
        executor: has the workers.
        chunk: how many samples a task takes at once; they run in threads, since they wait.
        host: the name or address at which the workers reach this process.
        pickler: writes the pipeline for the workers; that of cloudpickle where it is installed,
            which sends classes and lambdas of a script by value, else of ``pickle``.

    Raises:
        ArgumentError: the chunk holds no sample.

    Example:
        ``Measure(module, metric, held, evaluate=Workers(pool).evaluate)`` measures on them.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        chunk: int = 8,
        host: str = "localhost",
        pickler: type[pickle.Pickler] | None = None,
    ) -> None:
        check_counts(chunk=chunk)
        self.executor, self.chunk, self.host = executor, chunk, host
        self.pickler = pickler or _pickler()

    def evaluate(
        self, module: Module, metric: Callable[[Any, Any], Any], samples: Sequence[Any]
    ) -> list[Scored]:
        """Score samples.

        Arguments:
            module: the pipeline.
            metric: given the module and a sample, gives an `Evaluation` or a finite number.
            samples: the data.

        Returns:
            What each sample gave, in their order.

        Raises:
            ArgumentError: there is no sample, or something cannot be sent.
            ProgramError: the metric raised, or a worker died and the executor is none that goes on.
        """
        return self._run(module, metric, samples, learn=False)

    def backward(
        self, module: Module, metric: Callable[[Any, Any], Any], samples: Sequence[Any]
    ) -> list[Scored]:
        """Score samples, and run feedback back to the parameters.

        The feedback is added to the parameters here when all samples are done, in the order of the
        samples, whatever the order in which they ended; if one fails, no parameter is told
        anything. Arguments, results and errors are those of `evaluate`.
        """
        found = self._run(module, metric, samples, learn=True)
        told = [
            (parameter, [note for each in found for note in each.said.get(path, ())])
            for path, parameter in text_parameters(module).items()
        ]
        told = [(parameter, notes) for parameter, notes in told if notes]
        if told:
            run_backward([each for each, _ in told], [Feedback(notes) for _, notes in told])
        return found

    def _run(self, module: Any, metric: Any, samples: Sequence[Any], learn: bool) -> list[Scored]:
        if not len(samples):
            raise ArgumentError("Samples are one or more.", given="none")
        if learn and not text_parameters(module):
            raise ArgumentError("The module has no text that may be changed.")
        models: list[LM] = []
        chosen = _prompts._replaced.get(), current_critic()  # for all inside, there as here
        shared = self._pack((module, metric, *chosen, learn), models)
        starts = range(0, len(samples), self.chunk)
        parts = [self._pack(list(samples[n : n + self.chunk]), models) for n in starts]
        known = [(lm.model, lm.price) for lm in models]
        with _Office(models, self.host) as office:
            work = partial(_work, shared, known, office.address)
            tasks = [self.executor.submit(work, *each) for each in zip(parts, starts, strict=True)]
            try:
                rows = [row for task in tasks for row in task.result()]
            except BrokenExecutor as error:
                raise ProgramError(
                    "A worker died.", given=f"{type(error).__name__}: {error}",
                    mend="Look into its log: out of memory, or a crash.",
                ) from None  # fmt: skip
            finally:
                for task in tasks:
                    task.cancel()
        for row in rows:
            if "error" in row:
                raise _read_error(row["error"])
        with tolerating() as failures:
            for row in rows:
                failures.count(row["asked"], row["failures"])
        return [_unpack(row["scored"], models) for row in rows]

    def _pack(self, value: Any, models: list[LM]) -> bytes:
        try:
            return _pack(self.pickler, value, models)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                "The pipeline, its metric or a sample cannot be sent to a worker.",
                given=str(error)[:200],
                mend="Define it at the top of a module; or pip install cloudpickle.",
            ) from None


def _pickler() -> type[pickle.Pickler]:
    try:
        from cloudpickle import CloudPickler  # type: ignore[missing-import]
    except ImportError:
        return pickle.Pickler
    return CloudPickler


def _pack(pickler: type[pickle.Pickler], value: Any, models: list[LM]) -> bytes:
    """The value for another process, its models by their numbers."""

    class Packer(pickler):  # type: ignore[invalid-inheritance]
        def persistent_id(self, each: Any) -> Any:
            if isinstance(each, Origin):
                return tuple(each)
            if not isinstance(each, LM):
                return None
            if not any(each is lm for lm in models):
                models.append(each)
            return next(number for number, lm in enumerate(models) if lm is each)

        def reducer_override(self, each: Any) -> Any:
            if isinstance(each, Variable):
                return _reduced(each)
            beyond = getattr(super(), "reducer_override", None)  # cloudpickle has one
            return NotImplemented if beyond is None else beyond(each)

    file = io.BytesIO()
    Packer(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _unpack(packed: bytes, models: Sequence[LM]) -> Any:
    """What was packed; the nodes that wrote its notes are told apart from all others."""
    nodes: dict[int, int] = {}

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            if isinstance(pid, int):
                return models[pid]
            function, role, node = pid
            return Origin(function, role, nodes.setdefault(node, next(count)))

    return Unpacker(io.BytesIO(packed)).load()


def _reduced(variable: Variable) -> Any:
    """A leaf for another process: its value and where it is from, without what was said of it."""
    if variable.grad_fn is not None:
        raise GraphError(
            "A value with a history was to be sent to a worker, where none is.",
            given=repr(variable)[:80], mend="Pass its detach(), or make it inside the metric.",
        )  # fmt: skip
    if isinstance(variable, Feedback):
        return Feedback, (variable.notes, variable.role)
    state = (variable.data, variable.role, variable.requires_grad, variable.name)
    return _made, (type(variable), state, variable.origin)


def _made(kind: type[Variable], state: tuple[Any, ...], origin: Origin | None) -> Variable:
    made = kind.__new__(kind)
    Variable.__init__(made, *state)
    if origin is not None:
        made._origin = origin
    return made


class _Office:
    """Where this process answers what the workers ask its models, each thing once.

    What is asked and answered is JSON, behind a key that only those workers have.
    """

    def __init__(self, models: Sequence[LM], host: str) -> None:
        self._models, self._context = models, copy_context()
        key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=512, authkey=key)
        port: Any = self._listener.address[1]
        self.address = (host, port, key)
        self._answers: dict[Any, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "_Office":
        threading.Thread(target=self._serve, name="pullback-office", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        with suppress(OSError, EOFError), _connect(self.address):
            pass  # wakes who waits for the next
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, ProcessError):
                connection = None  # one that could not say who it is, or has left
            if self._closed:
                return
            if connection is not None:
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                where, model, request, occurrence = json.loads(connection.recv_bytes())
                answer = self._ask((tuple(where), model, request, occurrence))
                connection.send_bytes(json.dumps(answer).encode())
            except (OSError, EOFError):  # the worker is gone: its answer is kept for the next
                return

    def _ask(self, asked: tuple[Any, ...]) -> dict[str, Any]:
        # By place and occurrence, so that samples which go to another worker get what they had
        # asked: the first who asks pays, and whoever comes meanwhile or later waits for that
        # answer.
        key = json.dumps(asked, sort_keys=True)
        with self._lock:
            mine = key not in self._answers
            future = self._answers.setdefault(key, Future())
        if mine:
            future.set_result(self._context.copy().run(self._first, *asked))
        return future.result()

    def _first(
        self, where: tuple[Any, ...], model: int, request: Mapping[str, Any], occurrence: int
    ) -> dict[str, Any]:
        try:
            with within(("worker", *where, occurrence)):
                asking = call_within_limit(self._models[model].ask, (_read_request(request),))
                return run(asking).to_dict()
        except Exception as error:
            return {"error": _write_error(error)}


def _connect(address: tuple[str, int, bytes]) -> Connection:
    host, port, key = address
    return Client((host, port), authkey=key)


_asked: ContextVar[Counter[Any]] = ContextVar("pullback.text.asked")
"""How often a sample that is run here has asked the same at the same place."""


class _Distant(LM):
    """A model of the process that sent the samples."""

    wraps = True  # a run looks at the model there, also where a worker is a thread here

    def __init__(self, number: int, model: str, price: Any, address: Any) -> None:
        self.number, self.model, self.price, self._address = number, model, price, address

    async def answer(self, request: Request) -> Completion:
        """Ask there."""
        asked, same = _asked.get(), (place(), self.number, request.digest(self.model))
        letter = [place(), self.number, request.to_dict(), asked[same]]
        asked[same] += 1
        answer = await asyncio.to_thread(self._send, json.dumps(letter).encode())
        if "error" in answer:
            raise _read_error(answer["error"])
        return Completion.from_dict(answer)

    def _send(self, letter: bytes) -> Any:
        with _connect(self._address) as connection:
            connection.send_bytes(letter)
            return json.loads(connection.recv_bytes())


def _work(
    shared: bytes, known: list[tuple[str, Any]], address: Any, part: bytes, start: int
) -> list[dict[str, Any]]:
    """Run on a worker: some samples, at once; what each gave, packed."""
    models: list[LM] = [_Distant(number, *each, address) for number, each in enumerate(known)]
    module, metric, prompts, critic, learn = _unpack(shared, models)
    samples = _unpack(part, models)
    parameters = text_parameters(module) if learn else None

    def one(number: int) -> dict[str, Any]:
        _asked.set(Counter())  # in a context of its own, as all that is set here
        _prompts._replaced.set(prompts)
        _critic.set(critic)
        try:
            with tolerate(1.0) as failures, within(("sample", start + number)):
                scored = score_sample(metric, module, samples[number], parameters)
            told = _pack(pickle.Pickler, scored, models)
            return {"scored": told, "asked": failures.asked, "failures": failures.causes}
        except Exception as error:
            return {"error": _write_error(error)}

    return at_once([partial(one, number) for number in range(len(samples))], len(samples))


def _read_request(value: Mapping[str, Any]) -> Request:
    tools = [Tool(**tool["function"]) for tool in value.get("tools", ())]
    return Request.of(
        value["messages"], **value["options"], schema=value.get("schema"), tools=tools
    )
