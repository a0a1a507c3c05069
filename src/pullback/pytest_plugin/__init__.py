"""The pytest plugin: check every custom Function that a test run applies."""

from pullback.pytest_plugin._plugin import check_function, pytest_addoption, pytest_configure

__all__ = ["check_function", "pytest_addoption", "pytest_configure"]
