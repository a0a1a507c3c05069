"""Keep the checked code and the process apart: seeds, defaults, modes, warnings."""

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch

__all__ = ["guarded", "reseed"]


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
    generators: Sequence[tuple[torch.Generator, torch.Tensor]] = (),
) -> Iterator[list[warnings.WarningMessage]]:
    """Run foreign code, then put the process back as it was.

    Random generators, default dtype and device, threads, working directory, environment variables,
    the import path and the switches of torch are as before, whatever the code did.

    Arguments:
        generators: generators of the caller with the state that they go back to.

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
        for keep in (_python, _switches, _loggers):
            stack.enter_context(keep())
        for generator, state in generators:
            stack.callback(generator.set_state, state)
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
    state, numpy_state = random.getstate(), _numpy_state()
    folder, path, variables = _folder(), list(sys.path), dict(os.environ)
    try:
        yield
    finally:
        random.setstate(state)
        _restore_numpy(numpy_state)
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
    names = ("torch._dynamo", "torch._functorch", "torch._subclasses")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _numpy_state() -> object | None:
    try:
        import numpy as np
    except ImportError:
        return None
    return np.random.get_state()


def _restore_numpy(state: object | None) -> None:
    if state is None:
        return
    import numpy as np

    np.random.set_state(state)  # type: ignore[arg-type]
