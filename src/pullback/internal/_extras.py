"""The answer to a missing optional dependency: the exact command that installs it."""

import importlib
import importlib.util
import sys
import types

from pullback.errors import MissingExtraError

__all__ = ["require", "require_tensor"]

_TENSOR = ("torch", "numpy")  # numba is not here: without it kernels run in plain torch


def require(module: str, *, extra: str, purpose: str) -> types.ModuleType:
    """Import an optional dependency, or say which command installs it.

    The message begins with the purpose and names the extra of pullback that holds the module.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise _missing(root, extra, purpose) from error


def require_tensor(purpose: str) -> None:
    """Say which command installs the extra `tensor`, where a package of it is missing.

    A room that computes with tensors asks first of all, before an import of its own fails. The
    message begins with the purpose.

    Raises:
        MissingExtraError: torch or numpy is not installed.
    """
    for package in _TENSOR:
        if not _is_installed(package):
            raise _missing(package, "tensor", purpose)


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return sys.modules[package] is not None
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _missing(package: str, extra: str, purpose: str) -> MissingExtraError:
    return MissingExtraError(
        f"{purpose} needs the package {package}, which is not installed.",
        mend=f"pip install 'pullback[{extra}]'",
    )
