"""Python in a copy of the process that runs the tests, in place of a new one.

For tests that ask what a program does, and not how Python starts: the copy has imported torch,
which takes a new process two seconds. It knows nothing else of the tests: no filter of warnings, no
handler of signals, and its clean-ups at exit are its own.
"""

import atexit
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["be_program", "interpret", "run_python", "start_copy", "start_program"]

_SECONDS = 250  # less than pytest gives a test
_KEPT = [str(Path(__file__).parents[1]), sys.prefix, sys.base_prefix]


def run_python(
    *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python words``: a script, ``-c`` and code, or ``-m`` and a module, with arguments."""
    # Where there is a device, no copy of a process that has run a backward can run one.
    if sys.platform != "linux" or torch.accelerator.is_available():
        return subprocess.run(
            [sys.executable, "-W", "ignore", *words],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def work() -> object:
        if folder is not None:
            os.chdir(folder)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        return interpret(list(words))

    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = start_copy(work, output.fileno(), errors.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *said)


def start_copy(work: Callable[[], object], output: int, errors: int) -> int:
    """Start a copy that leads a session of its own and runs ``work``; returns its number.

    Arguments:
        work: what it does; an integer that it returns is the exit status.
        output: the descriptor that is its standard output.
        errors: the descriptor that is its standard error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn where there are threads
        pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        be_program(work)
    return pid


class _Program:
    """A copy, as far as `subprocess.Popen` is asked of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        """Wait for its end; gives its exit status, negative for a signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._status is None:  # or its number may be that of another one by now
            os.kill(self.pid, number)


def start_program(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    **options: Any,
) -> Any:
    """As `subprocess.Popen`, and where ``command`` is a program of Python, as a copy."""
    name, *words = command
    own = shutil.which(name) or ""
    python = Path(own).name.startswith("python") and Path(own).parent == Path(sys.executable).parent
    plain = bool(words) and (words[0] in ("-c", "-m") or words[0][0] != "-")
    if env is None or options or not (sys.platform == "linux" and python and plain):
        return subprocess.Popen(command, env=env, stdout=stdout, **options)
    variables = dict(env)

    def work() -> object:
        os.environ.clear()
        os.environ.update(variables)
        _start_as_python(variables.get("PYTHONPATH", ""))
        return interpret(words)

    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        if stdout is not None:
            os.dup2(stdout, 1)
        be_program(work)
    return _Program(pid)


def _start_as_python(path: str) -> None:
    """What Python does before a program: its path, and what is customised in its start."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not any(file.startswith(folder) for folder in _KEPT):
            del sys.modules[name]  # a test's own, of another folder
    added = [entry for entry in path.split(os.pathsep) if entry]
    sys.path[:0] = added
    waiting = len(sys.meta_path)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", added)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    # What waits for the import of a module that is there would wait in vain.
    for finder in sys.meta_path[: len(sys.meta_path) - waiting]:
        name = getattr(finder, "_name", None)
        if name in sys.modules:
            sys.meta_path.remove(finder)
            finder._action(sys.modules[name])


def be_program(work: Callable[[], object]) -> None:
    """In a copy: run ``work`` as a program over descriptors 0, 1 and 2, and end as Python ends."""
    status = 1
    try:
        atexit._clear()
        sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_of_pytest(finder)]
        # A shell that runs the tests in the background has them ignore Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(_SECONDS)
        faulthandler.enable(2)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode) for number, mode in enumerate("rww")
        )
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        status = _status(work)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        if status == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def _is_of_pytest(finder: object) -> bool:
    return type(finder).__module__.startswith("_pytest.")


def _status(work: Callable[[], object]) -> int:
    """What a program ends with; says the error that ends it."""
    try:
        found = work()
    except SystemExit as error:
        found = error.code
        if isinstance(found, str):
            print(found, file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return found if isinstance(found, int) else 0


def interpret(words: list[str]) -> None:
    """In a copy: run what ``python words`` runs."""
    first, *rest = words
    sys.orig_argv = [sys.executable, *words]
    if first == "-c":
        code, *rest = rest
        sys.argv, main = ["-c", *rest], types.ModuleType("__main__")
        sys.modules["__main__"] = main
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), vars(main))
    elif first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
