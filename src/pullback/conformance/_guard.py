"""Keep the checked code and the process apart: seeds, defaults, modes, warnings."""

import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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
def guarded() -> Iterator[list[warnings.WarningMessage]]:
    """Run foreign code, then put the process back as it was.

    Yields:
        The warnings that were raised meanwhile.

    Example:
        >>> with guarded() as caught:
        ...     warnings.warn("only kept", stacklevel=1)
        >>> len(caught)
        1
    """
    python_state, numpy_state = random.getstate(), _numpy_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    loggers = [logging.getLogger("torch._dynamo"), logging.getLogger("torch._functorch")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with (
            torch.random.fork_rng(devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            yield caught
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        random.setstate(python_state)
        _restore_numpy(numpy_state)


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
