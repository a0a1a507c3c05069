"""Rules that wait run at once, up to a limit; what they give, and where, never depends on time.

What runs at once arrives in another order each time. Its place does not change: operations that
wait are numbered in the order in which their own thread or task applies them, and what happens
inside one, forward or backward, happens at its place. The count is kept in the context, so that
a task which is forked goes on counting by itself.
"""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import ContextVar
from graphlib import TopologicalSorter
from typing import Any, TypeVar

from pullback.errors import GraphError
from pullback.internal._arguments import Count, checked
from pullback.internal._limiter import Limiter
from pullback.internal._setting import setting

__all__ = [
    "advance",
    "at",
    "awaited",
    "begin",
    "call_within_limit",
    "concurrency",
    "drive",
    "place",
    "run",
    "runs",
    "served_by",
    "within",
]


Part = str | int
Path = tuple[Part, ...]

_here: ContextVar[tuple[Path, int]] = ContextVar("pullback.tape.place", default=((), 0))


def place() -> Path:
    """The parts of the program that this is in.

    Example:
        >>> with at("epoch", 1), at("item", 3):
        ...     place()
        ('epoch', 1, 'item', 3)
    """
    return _here.get()[0]


def advance() -> Path:
    """The place of the next operation here."""
    path, count = _here.get()
    _here.set((path, count + 1))
    return (*path, count)


@checked
def at(*parts: Part) -> AbstractContextManager[Any]:
    """Let what happens inside have a place of its own.

    Arguments:
        parts: a name, a number, or both; the same ones are the same place again.
    """
    return within((*place(), *parts))


def within(path: Path) -> AbstractContextManager[Any]:
    """Let what happens inside be at a place that is known, such as that of a node."""
    return setting(_here, (path, 0))


T = TypeVar("T")
DEFAULT_LIMIT = 64


_default = Limiter(DEFAULT_LIMIT)
_limiter: ContextVar[Limiter] = ContextVar("pullback.tape.limiter", default=_default)


@checked
def concurrency(limit: Count) -> contextlib.AbstractContextManager[Limiter]:
    """Let at most so many rules that wait run at once inside; 64 by default.

    A rule that runs others (it applies Functions, or runs backward) lends them its own place,
    one after another, so that no limit can lock up.

    Arguments:
        limit: how many calls of coroutine or blocking rules are under way at most.

    Raises:
        ArgumentError: the limit is no positive whole number.

    Example:
        >>> with concurrency(8):
        ...     pass
    """
    return setting(_limiter, Limiter(limit))


async def call_within_limit(rule: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a rule that waits: await it, or give it a thread, when a place is free."""
    # What the rule runs itself shares its place: to ask for a second one while holding the first
    # would lock up as soon as all places are held by rules that do.
    async with _limiter.get().place():
        with setting(_limiter, Limiter(1)):
            if inspect.iscoroutinefunction(rule):
                return await rule(*args)
            loop, number = asyncio.get_running_loop(), served_by.get()
            # A loop that awaits a thread is free to serve it, as it serves what is beside.
            with setting(served_by, number - (_loops.get(number - 1) is loop)):
                work = functools.partial(contextvars.copy_context().run, rule, *args)
            return await loop.run_in_executor(_threads(), work)


@functools.cache
def _threads() -> concurrent.futures.Executor:
    """Threads enough for every place of the widest limit; idle ones cost nothing but memory."""
    return concurrent.futures.ThreadPoolExecutor(1024, "pullback-tape")


async def drive(
    steps: TopologicalSorter[int], begin: Callable[[int], Any], finish: Callable[[int, Any], None]
) -> None:
    """Run steps as soon as all that they wait for is finished.

    Everything but the awaited calls happens in this task, so nothing needs a lock; steps that are
    ready at the same time begin in the order of their numbers. To begin one gives None if it is
    finished then, or a coroutine function to await; what that gave is what finishes it.
    """
    done: asyncio.Queue[tuple[int, asyncio.Task[Any]]] = asyncio.Queue()
    running: set[asyncio.Task[Any]] = set()
    steps.prepare()
    try:
        while steps.is_active():
            for index in sorted(steps.get_ready()):
                waiting = begin(index)
                if waiting is None:
                    steps.done(index)
                    continue
                task = asyncio.get_running_loop().create_task(waiting())
                task.add_done_callback(lambda task, index=index: done.put_nowait((index, task)))
                running.add(task)
            if running:
                index, task = await done.get()
                running.discard(task)
                finish(index, task.result())
                steps.done(index)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)


served_by: ContextVar[int] = ContextVar("pullback.tape.served_by", default=0)
"""The number of the loop that serves `run` here: above all that wait for what runs here."""

_loops: dict[int | str, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


# Why no `anyio.from_thread.BlockingPortal` (4.16, measured beside this on one machine): a call
# takes 343 us, not 196, and each of 64 begun together 336, not 94, since whoever begins
# waits until the loop has taken it; it cancels every await of a clean-up again, so that no stream
# could be closed; a KeyboardInterrupt in a task ends it for good; it refuses a finalizer that runs
# in its own thread; and the tape of the base install would need the package.
def _loop_of(name: int | str) -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, always the same one for a name: the portal to async.

    Those of whole numbers serve `run`; a client whose connections belong to a loop names another.
    """
    if name in _loops:
        return _loops[name]
    with _loops_lock:
        if name not in _loops:
            loop = _loops[name] = asyncio.new_event_loop()
            threading.Thread(
                target=_serve, args=(loop,), name=f"pullback-loop-{name}", daemon=True
            ).start()
        return _loops[name]


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop that others wait for: what ends a program ends who asked, by his future."""
    while True:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            loop.run_forever()


def runs(name: int | str) -> bool:
    """Whether this loop runs already, and still."""
    return name in _loops and not sys.is_finalizing()


def begin(
    coroutine: Coroutine[Any, Any, T], name: str | None = None
) -> concurrent.futures.Future[T]:
    """Let a coroutine run beside this, in the loop that `run` would take or the one of a name.

    A finalizer may call it for a loop that runs, in whatever thread the garbage collector meets:
    nothing waits then, and the context of that thread, which it may be in the middle of changing
    (Python below 3.12 loses variables or ends by a signal), is not written.
    """
    if sys.is_finalizing():  # no other thread runs any more: who waited for one would wait for ever
        coroutine.close()
        raise GraphError("Nothing that waits can be run while the interpreter ends.",
                         mend="Do it before, or in a function of atexit.")  # fmt: skip
    number, context = served_by.get(), contextvars.copy_context()
    context.run(served_by.set, number + 1)  # which the task takes along
    loop = _loop_of(name or number)
    return context.run(asyncio.run_coroutine_threadsafe, coroutine, loop)


def awaited(future: concurrent.futures.Future[T]) -> asyncio.Future[T]:
    """A future of another thread, to await; one whose awaiter has left raises for nobody."""
    answer = asyncio.wrap_future(future)
    answer.add_done_callback(lambda each: each.cancelled() or each.exception())  # is retrieved
    return answer


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from synchronous code, whether or not a loop runs here.

    It runs in an event loop of the tape's own, always the same one, so that clients which belong
    to a loop can be kept. A coroutine that calls this itself is served by the next loop, so that
    none waits for itself.
    """
    # Blocking here is safe in a coroutine, too: what runs in loop n is served by loop n + 1, so
    # that no loop waits for work of its own. The context says so and not the thread, for a
    # coroutine may wait for threads that run others. As many loops live as calls are nested.
    future = begin(coroutine)
    try:
        return future.result()
    except BaseException:
        if not future.done():  # interrupted here: let nothing go on behind the caller's back
            future.cancel()
            concurrent.futures.wait([future], timeout=5)
        raise


def _forget() -> None:
    """After a fork no other thread runs in the child."""
    _loops.clear()
    _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
