"""Every example runs: those of README.md, CONTRIBUTING.md, docs/ and the docstrings of src/."""

import atexit
import gc
import importlib.util
import itertools
import logging
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.evaluators.doctest import NUMBER
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from tests.processes import close_in_copies, open_pipes, use_large_pages

from pullback.internal._when_imported import WhenImported

# As `tests.fuzzing` reads it, which this file does not import: that takes pullback with it.
FUZZING = int(os.environ.get("PULLBACK_FUZZ", "1")) > 1

# `make test` draws the same numbers each time, so that what fails on one machine fails on all;
# `make fuzz` looks for what other numbers find.
SEED = int(os.environ.get("PULLBACK_SEED", "0"))
_GOLDEN = (5**0.5 - 1) / 2
hypothesis.settings.register_profile("pullback", derandomize=not FUZZING)
hypothesis.settings.load_profile("pullback")

# Of what inductor does at its first kernel, most is not for that kernel: it starts processes that
# would compile others, each with a torch of its own, and tries a program for each kind of vectors.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")  # once for each graph
if not FUZZING:
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# A test starts Python in vain where each start compiles all of pullback anew, for half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A worker of pytest-xdist that dies is heard by the end of its pipes: a copy of it that outlived it
# would have the others wait for ever, and no test be named.
if "PYTEST_XDIST_WORKER" in os.environ:
    close_in_copies(open_pipes())
    # All is said when its Python ends: to take apart all that it has imported and compiled, too,
    # takes a second or two, for which the run would wait.
    atexit.register(os._exit, 0)

_ORIGINAL = os.getpid()
_copies = itertools.count()


def _use_large_pages() -> None:
    """Before the first copy, and again after some: what is written to or new lies in small ones."""
    if os.getpid() == _ORIGINAL and next(_copies) % 60 == 0:
        use_large_pages()


# A copy looks for garbage among what it makes itself: of all that its original has compiled that
# took it a second, and as many pages of memory of its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_use_large_pages, after_in_child=gc.freeze)

LOGGERS = logging.getLogger().manager.loggerDict
_told: set[str] = set()


def _tell_of_torch_once() -> None:
    """Have each logger of torch tell the one above it, down to `torch`.

    Before each part of a test pytest sets out to read along with each logger that tells no other,
    of which torch has eighty: a third of what a test costs beside itself. And for a reader of its
    own Dynamo describes all that it does in JSON: a tenth of its time.
    """
    if len(LOGGERS) == len(_told):
        return
    for name in LOGGERS.keys() - _told:
        logger = logging.getLogger(name)
        if name.startswith("torch.") and not logger.propagate:
            own = logging.StreamHandler  # to the terminal, as that of `torch`
            logger.handlers = [each for each in logger.handlers if type(each) is not own]
            logger.propagate = True
    _told.update(LOGGERS)


_tell_of_torch_once()


def _measure_no_guards(guards: ModuleType) -> None:
    """After each graph Dynamo empties the caches of the processor, to note how long guards take."""
    vars(guards)["profile_guard_manager"] = lambda *_: 0.0


WhenImported("torch._dynamo.guards", _measure_no_guards)


def _read_no_libraries(codecache: ModuleType) -> None:
    """Before its first kernel inductor reads all of Triton and of itself, a second or two.

    For a name under which kernels are kept. A copy of a process does so again, if that had not.
    """
    vars(codecache)["triton_key"] = lambda: torch.__version__
    vars(codecache)["torch_key"] = torch.__version__.encode


WhenImported("torch._inductor.codecache", _read_no_libraries)

# A Triton kernel's module can only be imported where triton is installed.
NOT_IMPORTABLE = [] if importlib.util.find_spec("triton") else ["_triton.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    """Start each test from a random state of its own, whatever ran before it."""
    _tell_of_torch_once()
    seed = SEED + zlib.crc32(item.nodeid.encode())
    # As `torch.manual_seed`, which for each kind of device that is not there keeps the seed, with a
    # text of who calls it: a third of what a test costs beside itself.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    item.add_report_section("setup", "seed", f"PULLBACK_SEED={SEED} draws what this test drew")


def seed_document(namespace: dict[str, Any]) -> None:
    """Start each document from the same random state, whatever ran before it."""
    torch.manual_seed(0)


_pages = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=NUMBER), SkipParser()],
    patterns=["*.md"],
    setup=seed_document,
)


class _Docstrings(Sybil):
    """Reads the syntax of no file that has no example: each process would, for seconds."""

    def should_parse(self, path: Path) -> bool:
        return super().should_parse(path) and b">>>" in path.read_bytes()


_docstrings = _Docstrings(
    path="src",
    parsers=[DocTestParser(optionflags=NUMBER)],
    patterns=["*.py"],
    excludes=NOT_IMPORTABLE,
    document_types={".py": PythonDocStringDocument},
    setup=seed_document,
)
pytest_collect_file = (_pages + _docstrings).pytest()


@pytest.fixture(autouse=True)
def the_default_dtype_that_was() -> Iterator[None]:
    """A test that leaves another default dtype fails, and no later test of its process does."""
    before = torch.get_default_dtype()
    yield
    left = torch.get_default_dtype()
    torch.set_default_dtype(before)
    assert left == before, f"the default dtype was {before}, and the test left {left}"


@pytest.fixture(autouse=torch.__version__ < "2.9")
def a_compiler_that_has_compiled_nothing() -> None:
    """Before torch 2.9 what is compiled goes through one function, of which eight forms are kept.

    From the ninth on everything would run uncompiled, without a word.
    """
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def no_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No check looks for the edit that mends what it finds, but in `make fuzz`.

    For tests of what is found: the search takes most of their time, and `test_edits` is about it.
    """
    if not FUZZING:
        for place in ("cause._wrong_derivative", "cause._causes", "clauses.forward"):
            monkeypatch.setattr(f"pullback.conformance.{place}.tried", lambda *given: given[-1])


@pytest.fixture
def copied_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that `pullback` runs are copies of this process, which has imported torch.

    For tests of what is found in a program, where others show how it is started.
    """
    from tests.copies import start_program

    started = SimpleNamespace(**vars(subprocess) | {"Popen": start_program})
    monkeypatch.setattr("pullback.internal._launch.subprocess", started)


@pytest.fixture
def copied_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is checked apart is checked in copies of this process, and no fresh one is started.

    For tests of what is said of a check, where others show that it runs in a fresh process.
    """
    from pullback.internal import _workers

    monkeypatch.setattr(_workers._current, "__defaults__", (True,))
    before = [*_workers._servers]
    yield
    if _workers._servers != before:
        _workers._servers.clear()


def _asks_how_much_to_try(module: ModuleType | None) -> bool:
    names = vars(module or object).values()
    return any(getattr(value, "__module__", None) == "tests.fuzzing" for value in names)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Mark what asks `tests.fuzzing` how much to try, for `make fuzz` to find it."""
    asks = cache(_asks_how_much_to_try)
    for item in items:
        if asks(getattr(item, "module", None)):
            item.add_marker("breadth")
    asked = config.option.keyword or any("::" in argument for argument in config.args)
    if not (asked or FUZZING):
        _sample(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while what stays is made: it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Take the tests out of the collections of garbage to come, of which they are most objects.

    And collect more seldom: after each 700 objects it took a tenth of the time of a test.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _spread(group: list[Any], count: int, place: int) -> Iterator[Any]:
    """Some cases of a test: each in turn has the most values of parameters that none had before.

    Else in an order that is another one for each test, and keeps no step with any of its tables:
    multiples of an irrational number are spread evenly (Weyl, Mathematische Annalen 77, 1916).
    """
    order = sorted(range(len(group)), key=lambda k: (k + place) * _GOLDEN % 1)
    left = [group[k] for k in order]
    seen: set[tuple[str, int]] = set()
    for _ in range(count):
        case = max(left, key=lambda item: len(item.callspec.indices.items() - seen))
        seen |= case.callspec.indices.items()
        left.remove(case)
        yield case


def _sample(config: Any, items: list[Any]) -> None:
    """Leave no slow test, and of the cases of one that is marked ``sampled(every)`` each so many.

    Where a file is marked, and a test of it too, the larger step is taken.
    """
    groups: dict[str, list[Any]] = {}
    for item in items:
        sampled = item.get_closest_marker("sampled") and hasattr(item, "callspec")
        if sampled and not item.get_closest_marker("slow"):
            groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for item in items if item.get_closest_marker("slow")}
    for name, group in groups.items():
        place = zlib.crc32(name.encode())  # the same cases whatever else is asked for
        step = max(marker.args[0] for marker in group[0].iter_markers("sampled"))
        left_out.update(set(group) - set(_spread(group, max(len(group) // step, 1), place)))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
