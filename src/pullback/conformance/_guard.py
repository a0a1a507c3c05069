"""The process that a check runs in: what it is, and how it is kept as it was."""

import gc
import logging
import os
import platform
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from pullback.internal._generators import rewind_shared
from pullback.internal.torch import LOGGERS, PRINT_OPTIONS

__all__ = ["environment", "guarded", "reseed", "unpatched"]


def reseed(seed: int) -> None:
    """Seed every global generator that a Function may draw from.

    Arguments:
        seed: any integer.

    Example:
        >>> reseed(3); first = torch.rand(1); reseed(3); bool(first == torch.rand(1))
        True
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    try:
        import numpy as np
    except ImportError:
        return
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
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with ExitStack() as stack:
        for keep in (_python, _settings, _switches, _loggers):
            stack.enter_context(keep())
        for put_back in generators:
            stack.callback(put_back)
        stack.enter_context(torch.random.fork_rng(devices))
        for mode in (torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(mode)
        stack.enter_context(torch.autocast("cpu", enabled=False))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        yield caught


@contextmanager
def _python() -> Iterator[None]:
    """The interpreter's own: generators, working directory, environment, import path."""
    with suppress(ImportError):
        import numpy.random  # noqa: F401 - so that its state is known before foreign code draws
    generators = rewind_shared()
    folder, path, variables = _folder(), list(sys.path), dict(os.environ)
    try:
        yield
    finally:
        for put_back in generators:
            put_back()
        sys.path[:] = path
        if dict(os.environ) != variables:
            os.environ.clear()
            os.environ.update(variables)
        if folder and _folder() != folder:
            with suppress(OSError):
                os.chdir(folder)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _interpreter_settings() -> list[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """How each setting of the interpreter, torch and numpy is read, and put back."""

    def attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
        return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)

    printing = vars(PRINT_OPTIONS)  # what set_printoptions writes, and nothing reads back
    found = [
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (gc.get_threshold, lambda value: gc.set_threshold(*value)),
        (lambda: dict(printing), printing.update),
        (
            torch.autograd.is_multithreading_enabled,
            torch.autograd.set_multithreading_enabled,
        ),
        (_flushes_denormal, torch.set_flush_denormal),
        attribute(sys, "stdout"), attribute(sys, "stderr"), attribute(sys, "excepthook"),
        attribute(torch.backends.cuda.matmul, "allow_tf32"),
        attribute(torch.backends.cudnn, "allow_tf32"),
        attribute(torch.backends.cudnn, "benchmark"),
        attribute(torch.backends.cudnn, "deterministic"),
        attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    ]  # fmt: skip
    if threading.current_thread() is threading.main_thread():
        found += [_handler(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with suppress(ImportError):
        import numpy as np

        found += [
            (np.geterr, lambda value: np.seterr(**value)),
            (np.get_printoptions, lambda value: np.set_printoptions(**value)),
        ]
    return found


def _handler(number: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    def write(handler: Any) -> None:
        if handler is not None:  # None: it was not set from Python
            signal.signal(number, handler)

    return lambda: signal.getsignal(number), write


def _flushes_denormal() -> bool:
    smallest = torch.full((1,), 1e-310, dtype=torch.float64, device="cpu")
    return not bool(smallest.mul(0.5).mul(2.0).gt(0))


@contextmanager
def _settings() -> Iterator[None]:
    """Settings that are read and written by a pair of functions."""
    kept = [(read, write, read()) for read, write in _interpreter_settings()]
    try:
        yield
    finally:
        for read, write, value in kept:
            if read() != value:
                write(value)


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
            now = vars(owner)
            for attribute, value in before[name].items():
                new = now.get(attribute)
                if new is not value and callable(value) and not _is_torchs_own(new):
                    setattr(owner, attribute, value)
                    replaced.append(f"{name}.{attribute}")


def _is_torchs_own(value: Any) -> bool:
    """Whether torch made it: its compiler wraps a few functions when it is first imported."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(os.path.dirname(torch.__file__))


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


@contextmanager
def _switches() -> Iterator[None]:
    """The defaults and switches of torch that hold for the whole process."""
    dtype, threads, device = torch.get_default_dtype(), torch.get_num_threads(), _device()
    strict = _strictness()
    precision, anomaly = torch.get_float32_matmul_precision(), torch.is_anomaly_enabled()
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if _device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if _strictness() != strict:  # torch imports its compiler to change it
            torch.use_deterministic_algorithms(strict[0], warn_only=strict[1])
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.autograd.set_detect_anomaly(anomaly, torch.is_anomaly_check_nan_enabled())
        torch.set_grad_enabled(grad)


def _strictness() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _device() -> torch.device:
    return torch.get_default_device()


@contextmanager
def _loggers() -> Iterator[None]:
    """Dynamo and functorch say on the log what becomes a finding here."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            _set_level(logger, logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            _set_level(logger, level)


def _set_level(logger: logging.Logger, level: int) -> None:
    if logger.level != level:  # to set it makes every logger of the process forget what it keeps
        logger.setLevel(level)


def environment() -> dict[str, str]:
    """Versions of Python, torch, numpy and pullback, and the devices.

    Returns:
        Name to text.

    Example:
        >>> "torch" in environment()
        True
    """
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("pullback", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    cuda = torch.cuda.is_available()
    found["device"] = torch.cuda.get_device_name() if cuda else "cpu"
    return found
