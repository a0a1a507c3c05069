"""Commands that run in the process of the tests."""

import pytest


@pytest.fixture(autouse=True)
def nothing_is_loaded_ahead(monkeypatch: pytest.MonkeyPatch, copied_workers: None) -> None:
    """No process loads, unasked, what a check of all clauses would need: a compiler, for seconds.

    Commands in processes of their own do so, in `test_signals`, and `tests/internal/test_workers`.
    """
    monkeypatch.setattr("pullback.cli._app.prepare_worker", lambda *_, **__: None)
