"""Ray's workers as a `concurrent.futures.Executor`, and for batches of samples."""

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._arguments import Count, checked
from pullback.internal._extras import require
from pullback.text.distributed import Workers

__all__ = ["RayExecutor", "workers"]


@checked
class RayExecutor(Executor):
    """The workers of a Ray that is started.

    Arguments:
        attempts: how many workers may die over the same task before it is given up.

    Raises:
        ArgumentError: Ray is not started, or there is to be no attempt.
        MissingExtraError: ray is not installed.
    """

    def __init__(self, *, attempts: Count = 3) -> None:
        self.ray: Any = require("ray", extra="ray", purpose="text.ray")
        if not self.ray.is_initialized():
            raise ArgumentError(
                "Ray is not started.",
                mend="ray.init() here, or ray.init(address=...) for a cluster.",
            )
        self._call = self.ray.remote(max_retries=attempts - 1)(
            lambda fn, args, kwargs: fn(*args, **kwargs)
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a callable on a worker; if that dies, on another.

        Raises:
            BrokenExecutor: from the future: as many died as there are attempts.
        """
        inner, outer = self._call.remote(fn, args, kwargs).future(), Future()

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if isinstance(error, self.ray.exceptions.RayTaskError):
                error = error.cause
            elif error is not None:
                error = BrokenExecutor(str(error))
            if not outer.set_running_or_notify_cancel():
                return
            if error is None:
                outer.set_result(done.result())
            else:
                outer.set_exception(error)

        inner.add_done_callback(settle)
        return outer


@checked
def workers(*, chunk: Count = 8, attempts: Count = 3) -> Workers:
    """The workers of the Ray that is started, for batches of samples.

    Arguments:
        chunk: how many samples a task takes at once.
        attempts: how many workers may die over the same task before it is given up.

    Raises:
        ArgumentError: Ray is not started, or a number makes no sense.
        MissingExtraError: ray is not installed.

    Example:
        ``Measure(module, metric, held, evaluate=pullback.text.ray.workers().evaluate)``
    """
    executor = RayExecutor(attempts=attempts)
    ray = executor.ray
    host, pickler = ray.util.get_node_ip_address(), ray.cloudpickle.CloudPickler
    return Workers(executor, chunk=chunk, host=host, pickler=pickler)
