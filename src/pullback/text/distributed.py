"""A batch of samples over the workers of a `concurrent.futures.Executor`, on this machine or many.

Such are `ProcessPoolExecutor`, loky's, Dask's ``client.get_executor()``, mpi4py's pool, and
`pullback.text.ray.RayExecutor`. The pipeline and its metric run there. The models stay here: a
worker asks over a connection, and this process answers. So keys never leave it, the journal and the
budget of a `pullback.text.lm.Run` hold for all, and a worker that dies costs nothing twice: when
another takes its samples over, what they had asked is known.
"""

import asyncio
import io
import itertools
import pickle
import secrets
import socket
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from multiprocessing import ProcessError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, Self

from pullback import errors
from pullback.errors import ArgumentError, ProgramError, PullbackError
from pullback.internal._arguments import Count, checked
from pullback.tape import Feedback, at, place
from pullback.tape import backward as run_backward
from pullback.tape._concurrency import call_within_limit, run, served_by, within
from pullback.text import _prompts
from pullback.text._critic import _critic, current_critic
from pullback.text._failure import tolerate, tolerating
from pullback.text._measure import Scored, at_once, names_of, score_sample, text_parameters
from pullback.text._module import Module
from pullback.text.lm import LM, Completion, Request, scrub
from pullback.text.lm._json import json_schema

__all__ = ["Scored", "Workers"]


Asked = tuple[tuple[tuple[Any, ...], int, str], int]
"""What a worker asks: at which place, which model, the digest; and which of such requests it is."""

_WAKES = 0.02  # seconds after which who waits for workers sees that nobody is to come any more
_CHALLENGES = 5.0  # seconds in which who is asked begins to answer, in a thread of its own
_foreign = itertools.count(-1, -1)
"""Numbers for the nodes of other processes: below 0, where no node of this one is."""


def _told(error: Exception) -> PullbackError:
    """An error for another process, keys taken out: ours; of another, where it was raised."""
    if not isinstance(error, PullbackError):
        where = "".join(traceback.format_exception(error)[-4:])
        return ProgramError("A program failed in another process.", given=scrub(where))
    kind = next(each for each in type(error).__mro__ if each.__module__ == errors.__name__)
    told = kind(scrub(error.what))
    for name in vars(told):
        value = getattr(error, name)
        setattr(told, name, scrub(value) if isinstance(value, str) else value)
    return told


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
        chunk: Count = 8,
        host: str = "localhost",
        pickler: type[pickle.Pickler] | None = None,
    ) -> None:
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
        starts = range(0, len(samples), self.chunk)
        with _Office(self.host) as office:
            # The prompts and the critic are chosen for all that happens inside, there as here; and
            # a worker that is a thread here asks no loop that waits for it.
            chosen = _prompts._prompts.get(), current_critic(), served_by.get()
            shared = self._pack((module, metric, *chosen, learn), office)
            named = list(zip(names_of(samples), samples, strict=True))
            parts = [self._pack(named[n : n + self.chunk], office) for n in starts]
            tasks: list[Future[Any]] = []
            try:  # an executor whose worker died earlier takes no task
                tasks += [self.executor.submit(_work, shared, part) for part in parts]
                rows = [row for task in tasks for row in task.result()]
            except BrokenExecutor as error:
                raise ProgramError(
                    "A worker died.", given=f"{type(error).__name__}: {error}",
                    mend="Look into its log: out of memory, or a crash.",
                ) from None  # fmt: skip
            finally:
                for task in tasks:
                    task.cancel()
        with tolerating() as failures:
            for _, asked, causes in rows:
                failures.count(asked, causes)
        return [_unpack(packed) for packed, *_ in rows]

    def _pack(self, value: Any, office: "_Office") -> bytes:
        """The value for a worker; its models stay, and are asked at the office."""

        class Packer(self.pickler):  # type: ignore[invalid-inheritance]
            def reducer_override(self, each: Any) -> Any:
                if isinstance(each, LM):
                    office.models[id(each)] = each
                    return _Distant, (id(each), each.model, each.price, office.address)
                beyond = getattr(super(), "reducer_override", None)  # cloudpickle has one
                return NotImplemented if beyond is None else beyond(each)

        file = io.BytesIO()
        try:
            Packer(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ArgumentError(
                "The pipeline, its metric or a sample cannot be sent to a worker.",
                given=str(error)[:200],
                mend="Define it at the top of a module; or pip install cloudpickle.",
            ) from None
        return file.getvalue()


def _pickler() -> type[pickle.Pickler]:
    try:
        from cloudpickle import CloudPickler  # type: ignore[missing-import]
    except ImportError:
        return pickle.Pickler
    return CloudPickler


def _unpack(packed: bytes) -> Scored:
    """What a worker has found; the nodes that wrote its notes are told apart from all others."""
    scored: Scored = pickle.loads(packed)  # noqa: S301  # of a worker, which runs what we sent it
    nodes: dict[int, int] = defaultdict(lambda: next(_foreign))
    for note in {id(each): each for notes in scored.said.values() for each in notes}.values():
        if note.origin is not None:
            note._origin = note.origin._replace(node=nodes[note.origin.node])
    return scored


class _Office(ThreadingTCPServer):
    """Where this process answers what the workers ask its models, each thing once.

    Only those workers have the key that lets them in.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), BaseRequestHandler)
        self.models: dict[int, LM] = {}  # which live here as long as this does
        self._context = copy_context()
        self._key = secrets.token_bytes(32)
        self.address = ((host, self.server_address[1]), self._key)
        self._answers: dict[Any, Future[Completion | Exception]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        serve = partial(self.serve_forever, poll_interval=_WAKES)
        threading.Thread(target=serve, name="pullback-office", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:  # type: ignore[bad-override]
        self.shutdown()
        # A worker that was forked meanwhile holds the socket, too: closed here alone, it would go
        # on listening, and whoever asks would wait for ever.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a worker, in a thread of its own: one that says nothing keeps nobody waiting."""
        # When the worker is gone, its answer is kept for the next.
        with Connection(request.detach()) as worker, suppress(OSError, EOFError, ProcessError):
            deliver_challenge(worker, self._key)
            answer_challenge(worker, self._key)
            worker.send(self._ask(*worker.recv()))

    def _ask(self, asked: Asked, request: Request) -> Completion | Exception:
        # By place and occurrence, so that samples which go to another worker get what they had
        # asked: the first who asks pays, and whoever comes meanwhile or later waits for that
        # answer.
        with self._lock:
            mine = asked not in self._answers
            future = self._answers.setdefault(asked, Future())
        if mine:
            future.set_result(self._context.copy().run(self._first, asked, request))
        return future.result()

    def _first(self, asked: Asked, request: Request) -> Completion | Exception:
        (where, model, _), occurrence = asked
        try:
            with at("worker", *where, occurrence):
                return run(call_within_limit(self.models[model].ask, (request,)))
        except Exception as error:
            return _told(error)


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
        if request.schema is not None:  # a class of a script is known here alone
            request = replace(request, schema=json_schema(request.schema))
        letter = (same, asked[same]), request
        asked[same] += 1
        answer = await asyncio.to_thread(self._send, letter)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send(self, letter: Any) -> Any:
        address, key = self._address
        while True:  # until somebody is there: a connection to nobody may look like one (Linux)
            with Client(address) as connection:
                if connection.poll(_CHALLENGES):
                    answer_challenge(connection, key)
                    deliver_challenge(connection, key)
                    connection.send(letter)
                    return connection.recv()


def _work(shared: bytes, part: bytes) -> list[tuple[bytes, int, list[str]]]:
    """Run on a worker: some samples, at once; what each gave, packed, and what of it failed."""
    module, metric, prompts, critic, served, learn = pickle.loads(shared)  # noqa: S301  # of who sent us
    named = pickle.loads(part)  # noqa: S301
    parameters = text_parameters(module) if learn else None

    def one(name: tuple[int, ...], sample: Any) -> tuple[bytes, int, list[str]]:
        _asked.set(Counter())  # in a context of its own, as all that is set here
        _prompts._prompts.set(prompts)
        _critic.set(critic)
        served_by.set(served)
        with tolerate(1.0) as failures, within(("sample", *name)):
            scored = score_sample(metric, module, sample, parameters)
        return pickle.dumps(scored), failures.asked, failures.causes

    try:
        return at_once([partial(one, *each) for each in named], len(named))
    except Exception as error:
        failed = _told(error)
    raise failed  # out here: what happened first may hold what is not to be written anywhere
