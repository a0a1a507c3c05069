"""An action runs once, after the import of a module that is not imported for it."""

import importlib.util
import sys

import pytest

from pullback.internal._when_imported import WhenImported


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("import os\nassert os.environ.get('LATE') != 'no'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "late_module"
    sys.modules.pop("late_module", None)


def test_it_runs_after_the_import_with_the_module_and_steps_aside(module):
    seen = []
    finder = WhenImported(module, seen.append)
    assert module not in sys.modules
    found = importlib.import_module(module)
    assert seen == [found]
    assert found.__loader__ is found.__spec__.loader
    assert found.__loader__ is not finder
    assert finder not in sys.meta_path
    importlib.reload(found)
    assert len(seen) == 1


def test_who_only_looks_for_the_module_does_not_end_the_wait(module):
    seen = []
    WhenImported(module, seen.append)
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    importlib.import_module(module)
    assert len(seen) == 1


def test_an_import_that_fails_is_waited_for_again(module, monkeypatch):
    seen = []
    WhenImported(module, seen.append)
    monkeypatch.setenv("LATE", "no")
    with pytest.raises(AssertionError):
        importlib.import_module(module)
    assert seen == []
    monkeypatch.delenv("LATE")
    importlib.import_module(module)
    assert len(seen) == 1


def test_two_wait_for_one_module(module):
    seen = []
    WhenImported(module, lambda found: seen.append(("first", found)))
    WhenImported(module, lambda found: seen.append(("second", found)))
    found = importlib.import_module(module)
    assert sorted(name for name, _ in seen) == ["first", "second"]
    assert all(it is found for _, it in seen)


def test_a_module_that_is_not_there_is_not_found(module):
    seen = []
    WhenImported("no_such_module_at_all", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
    assert importlib.import_module(module)
    assert seen == []
