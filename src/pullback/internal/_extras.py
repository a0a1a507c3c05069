"""The answer to a missing optional dependency: the exact command that installs it."""

import importlib
import types

from pullback.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str, purpose: str) -> types.ModuleType:
    """Import an optional dependency, or say which command installs it.

    Arguments:
        module: the module to import, for example ``"matplotlib.pyplot"``.
        extra: the extra of pullback that holds it.
        purpose: what it is needed for, to begin the message with.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        root = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        raise MissingExtraError(
            f"{purpose} needs the package {root}, which is not installed.",
            mend=f"pip install 'pullback[{extra}]'",
        ) from error
