"""The process that a check runs in: what it is, and how it is kept as it was."""

import gc
import logging
import operator
import os
import platform
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from pullback.conformance.process._failure import attempt, raised
from pullback.internal._generators import rewind_shared
from pullback.internal._setting import PROBING, setting
from pullback.internal.torch import LOGGERS, PRINT_OPTIONS

__all__ = [
    "device_in_use", "environment", "global_settings", "guarded", "has_device", "reseed",
    "seed_of_draws", "silenced", "unpatched", "what_device_says",
]  # fmt: skip


def device_in_use() -> torch.device | None:
    """The accelerator, if this process has used it; to ask is not to use it.

    What begins to use a GPU takes seconds and memory of it, and makes the process one that no copy
    can do the work of.

    Example:
        >>> device_in_use() is None or has_device()
        True
    """
    device = torch.accelerator.current_accelerator()
    if device is None:
        return None
    # Where a device says nothing of it (Apple's) it has no state of ours either.
    module = torch.get_device_module(device)
    return device if getattr(module, "is_initialized", bool)() else None


def what_device_says() -> str:
    """Why the device answers nothing more, or an empty text: an assertion of it ends its use.

    Example:
        >>> what_device_says()
        ''
    """
    device = device_in_use()
    module = None if device is None else torch.get_device_module(device)
    return str(raised(getattr(module, "synchronize", bool)) or "").partition("\n")[0]


def has_device() -> bool:
    """Whether there is an accelerator, used or not.

    It is counted: `torch.accelerator.is_available` may leave CUDA of no use to processes that are
    forked from this one.
    """
    device = torch.accelerator.current_accelerator()
    return device is not None and torch.get_device_module(device).device_count() > 0


def seed_of_draws(seed: int) -> int:
    """What global generators are seeded with: another number than the seed of a check.

    Arguments are often drawn after ``torch.manual_seed(0)``. Noise that began with the same seed
    would be these very arguments, and a backward that reads one for the other look right.

    Example:
        >>> seed_of_draws(0) != 0 and seed_of_draws(seed_of_draws(3)) == 3
        True
    """
    return seed ^ 0x2545F491


def reseed(seed: int) -> None:
    """Seed every global generator that a Function may draw from, by the seed of a check.

    Arguments:
        seed: any integer.

    Example:
        >>> reseed(3); first = torch.rand(1); reseed(3); bool(first == torch.rand(1))
        True
    """
    seed = seed_of_draws(seed)
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    device = device_in_use()
    if device is not None:
        torch.get_device_module(device).manual_seed_all(seed)
    with suppress(ImportError):
        import numpy as np

        np.random.seed(seed % 2**32)  # the global generator is what Functions draw from


@contextmanager
def guarded(
    generators: Sequence[Callable[[], object]] = (),
) -> Iterator[list[warnings.WarningMessage]]:
    """Run foreign code, then put the process back as it was.

    Random generators, default dtype and device, threads, working directory, environment variables,
    the import path and the switches of torch are as before, whatever the code did.

    Arguments:
        generators: put generators of the caller back.

    Yields:
        The warnings that were raised meanwhile.

    Example:
        >>> with guarded() as caught:
        ...     warnings.warn("only kept", stacklevel=1)
        >>> len(caught)
        1
    """
    device = device_in_use()
    with suppress(ImportError):
        import numpy.random  # noqa: F401 - so that its state is known before foreign code draws
    kept = [(read, write, read()) for read, write in global_settings().values()]
    with ExitStack() as stack:
        for put_back in (partial(_restore, kept), *rewind_shared(), *generators):
            stack.callback(put_back)
        stack.enter_context(silenced())
        stack.enter_context(setting(PROBING, True))
        stack.enter_context(torch.random.fork_rng([]))
        if device is not None:
            every = range(torch.accelerator.device_count())
            stack.enter_context(torch.random.fork_rng(every, device_type=device.type))
        for mode in (torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(mode)
        for kind in ("cpu",) if device is None else ("cpu", device.type):
            stack.enter_context(torch.autocast(kind, enabled=False))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        yield caught


Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


def _restore(kept: Sequence[tuple[Callable[[], Any], Callable[[Any], Any], Any]]) -> None:
    """Write what is no longer as it was: to write some has a price, or imports torch's compiler."""
    for read, write, value in kept:
        if read() != value:
            write(value)


def global_settings() -> dict[str, Setting]:
    """How each setting of the interpreter, torch and numpy is read, and put back.

    Example:
        >>> read, _ = global_settings()["the default dtype"]
        >>> read()
        torch.float32
    """
    found = {**_settings_of_python(), **_settings_of_torch()}
    with suppress(ImportError):
        import numpy as np

        found["what numpy does at errors"] = np.geterr, lambda value: np.seterr(**value)
        found["how arrays are printed"] = (
            np.get_printoptions, lambda value: np.set_printoptions(**value)
        )  # fmt: skip
    return found


def _settings_of_python() -> dict[str, Setting]:
    found: dict[str, Setting] = {
        "the working directory":  # which may have been removed
            (lambda: attempt(os.getcwd, ""), lambda folder: raised(partial(os.chdir, folder))),
        "the import path":
            (lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
        "environment variables":
            (lambda: dict(os.environ),
             lambda value: (os.environ.clear(), os.environ.update(value))),
        "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "whether garbage is collected":
            (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "when garbage is collected": (gc.get_threshold, lambda value: gc.set_threshold(*value)),
        **{f"sys.{name}": _attribute(sys, name) for name in ("stdout", "stderr", "excepthook")},
    }  # fmt: skip
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            found[f"the handler of {number.name}"] = _handler(number)
    return found


def _settings_of_torch() -> dict[str, Setting]:
    printing = vars(PRINT_OPTIONS)  # what set_printoptions writes, and nothing reads back
    cudnn: Any = torch.backends.cudnn
    return {
        "how tensors are printed": (lambda: dict(printing), printing.update),
        "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "the default device":
            (torch.get_default_device,
             lambda value: torch.set_default_device(None if value.type == "cpu" else value)),
        "the number of threads": (torch.get_num_threads, torch.set_num_threads),
        "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
        "whether autograd uses threads":
            (torch.autograd.is_multithreading_enabled,
             torch.autograd.set_multithreading_enabled),
        "whether anomalies are detected":
            (lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
             lambda value: torch.autograd.set_detect_anomaly(*value)),
        "whether algorithms are deterministic":
            (lambda: (torch.are_deterministic_algorithms_enabled(),
                      torch.is_deterministic_algorithms_warn_only_enabled()),
             lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1])),
        "the precision of matrix products":
            (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        # By the register that torch sets.
        "whether denormal numbers are flushed":
            (lambda: not _DENORMAL * 0.5 * 2.0 > 0, torch.set_flush_denormal),
        "cuda.matmul.allow_tf32": _attribute(torch.backends.cuda.matmul, "allow_tf32"),
        **{f"cudnn.{name}": _attribute(cudnn, name)
           for name in ("allow_tf32", "benchmark", "deterministic")},
        "whether new memory is filled":
            _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    }  # fmt: skip


def _attribute(owner: Any, name: str) -> Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _handler(number: int) -> Setting:
    def write(handler: Any) -> None:
        if handler is not None:  # None: it was not set from Python
            signal.signal(number, handler)

    return lambda: signal.getsignal(number), write


_DENORMAL = 1e-310


def _set_level(logger: logging.Logger, level: int) -> None:
    if logger.level != level:  # to set it makes every logger of the process forget what it keeps
        logger.setLevel(level)


@contextmanager
def silenced() -> Iterator[None]:
    """Have Dynamo and functorch log nothing: what they would say becomes a finding."""
    loggers = [(log, log.level) for log in map(logging.getLogger, LOGGERS)]
    try:
        for logger, _ in loggers:
            _set_level(logger, logging.CRITICAL)
        yield
    finally:
        for logger, level in loggers:
            _set_level(logger, level)


@contextmanager
def unpatched() -> Iterator[list[str]]:
    """Put back the functions of torch that foreign code replaces.

    Yields:
        The names of those that were replaced, once the block has ended.

    Example:
        >>> with unpatched() as replaced:
        ...     torch.sin = torch.cos
        >>> replaced, torch.sin is torch.cos
        (['torch.sin'], False)
    """
    before = {name: dict(vars(owner)) for name, owner in _PATCHABLE.items()}
    replaced: list[str] = []
    try:
        yield replaced
    finally:
        for name, owner in _PATCHABLE.items():
            now = dict(vars(owner))
            kept = len(now) >= len(before[name])
            if kept and all(map(operator.is_, now.values(), before[name].values())):
                continue  # in the same order, as a rule
            for attribute, value in before[name].items():
                new = now.get(attribute)
                if new is not value and callable(value) and not _is_torchs_own(new):
                    setattr(owner, attribute, value)
                    replaced.append(f"{name}.{attribute}")


def _is_torchs_own(value: Any) -> bool:
    """Whether torch made it: its compiler wraps a few functions when it is first imported."""
    return getattr(value, "__globals__", {}).get("__name__", "").partition(".")[0] == "torch"


_PATCHABLE = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.autograd": torch.autograd,
    "torch.func": torch.func,
}


def environment() -> dict[str, str]:
    """Versions of Python, torch, numpy and pullback, and the devices."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("pullback", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    device = device_in_use()
    module = torch.get_device_module(device) if device is not None else None
    found["device"] = getattr(module, "get_device_name", lambda: str(device or "cpu"))()
    return found
