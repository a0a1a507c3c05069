"""Compiling for the CPU: kept on disk where that can be, and only while its sources stay."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from pullback.internal.kernels import _cpu
from pullback.internal.kernels._cpu import compile_kernel


def test_division_by_zero_follows_the_standard():
    @compile_kernel()
    def divide(x, y):
        return x / y

    assert divide(1.0, 0.0) == np.inf


def test_where_nothing_can_be_kept_it_is_compiled_anew(monkeypatch):
    real, asked = numba.njit, []

    def refuse(*args, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", refuse)

    @compile_kernel()
    def double(x):
        return x + x

    assert double(2.0) == 4.0
    assert asked[:2] == [True, False]  # the compiler itself asks, too, where it is used first


def test_the_sources_of_a_kernel_are_those_of_its_room():
    def names(module):
        return {path.parent.name + "/" + path.name for path in _cpu._sources(module)}

    found = names("pullback.trajectory.kernels.states._cpu")
    wanted = {"states/_cpu.py", "kernels/_cpu.py"}
    assert wanted <= found
    assert not any(name.startswith("tensor/") for name in found)
    assert {"measure/_layout.py", "vectors/_cpu.py"} <= names("pullback.tracking.measure._cpu")


def test_a_change_in_any_file_that_a_kernel_uses_is_noticed(tmp_path):
    room = tmp_path / "house" / "room"
    (room / "inner").mkdir(parents=True)
    for folder in (tmp_path / "house", room, room / "inner"):
        (folder / "__init__.py").write_text("")
    (room / "inner" / "_cpu.py").write_text(
        "from house.room._numbers import FACTOR\n"
        "from pullback.internal.kernels._cpu import compile_kernel\n"
        "@compile_kernel()\n"
        "def scale(x):\n"
        "    return FACTOR * x\n"
    )
    program = "from house.room.inner._cpu import scale; print(scale(1.0), scale.stats.cache_hits)"

    def run(factor):
        (room / "_numbers.py").write_text(f"FACTOR = {factor}\n")
        done = subprocess.run(
            [sys.executable, "-B", "-c", program],  # bytecode looks at whole seconds
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        value, hits = done.stdout.replace("Counter", "").split(" ", 1)
        return float(value), "({})" not in hits and "()" not in hits

    assert run(2.0) == (2.0, False)
    assert run(2.0) == (2.0, True)
    assert run(3.0) == (3.0, False)


ANNOUNCED = """
import sys
from pullback.internal.kernels._cpu import compile_kernel

sys.stderr.isatty = lambda: {waits}


@compile_kernel(nogil=True)
def double(x):
    return x + x


double(2.0)
"""


@pytest.mark.slow
def test_what_is_compiled_is_said_once_and_to_who_waits_only(tmp_path):
    source = tmp_path / "own_kernel.py"

    def run(waits):
        text = ANNOUNCED.format(waits=waits)
        if not source.exists() or source.read_text() != text:  # its date counts, too
            source.write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", "import own_kernel"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")},
            timeout=120,
            check=True,
        )
        return done.stderr

    assert run(False) == ""
    assert run(True).splitlines() == [
        "pullback: compiling double for this machine; it is kept on disk"
    ]
    assert run(True) == ""


KEPT = """
from pullback.internal.kernels._cpu import compile_kernel

_compiled = compile_kernel(nogil=True)


@_compiled
def _square(x):
    return x * x


@_compiled
def total(values, factor):
    several, result = values.copy(), 0.0
    for value in several:
        result += factor[0] * _square(value)
    return result


@_compiled
def both(values):
    return total(values, (1.0,)) + _square(values[0])
"""
LOADED = """
import sys
import numpy as np
import kept

values = np.arange(4.0)
hits = kept.total.stats.cache_hits
print(kept.total(values, (2.0,)), len(hits), "numba.np.linalg" in sys.modules)
print(kept.both(values + 1), "numba.np.linalg" in sys.modules)
"""


def test_what_is_kept_is_loaded_without_the_compiler(tmp_path):
    # Its tables take half a second to import; whoever compiles after that finds them whole.
    (tmp_path / "kept.py").write_text(KEPT)

    def run(program):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.splitlines()

    assert run(LOADED.rsplit("\n", 2)[0]) == ["28.0 0 True"]
    assert run(LOADED) == ["28.0 1 False", "31.0 True"]
    assert run(LOADED) == ["28.0 1 False", "31.0 False"]
