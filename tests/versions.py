"""Marks of tests that not every torch can pass, with the reason, so that none is lost silently."""

from typing import Any

import pytest
import torch

from pullback.errors import UnsupportedError

__all__ = ["needs_torch", "refused_before"]


def needs_torch(version: str, what: str) -> Any:
    """Skip a test where torch does not have what it is about."""
    return pytest.mark.skipif(
        torch.__version__ < version, reason=f"torch {version} brings {what}: there is none here"
    )


def refused_before(version: str, why: str, raises: type[Exception] = UnsupportedError) -> Any:
    """On a torch before the version, the test must end in our refusal by name, and in no other way.

    The test is strict: if it passes there, or fails in another way, it fails.
    """
    return pytest.mark.xfail(
        torch.__version__ < version,
        reason=f"refused by name before torch {version}: {why}",
        raises=raises,
        strict=True,
    )
