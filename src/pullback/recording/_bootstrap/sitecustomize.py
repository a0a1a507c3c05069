"""Started by Python itself in every process of a recorded program, before the program.

The folder of this file is put first on PYTHONPATH by ``pullback record`` and ``pullback check --``.
It loads the recorder by path, then hands over to the ``sitecustomize`` that it hides, if any.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    directory = os.environ.get("PULLBACK_RECORD_DIRECTORY")
    if not directory or not os.path.isdir(directory):
        return
    path = os.path.join(os.path.dirname(_HERE), "_recorder.py")
    spec = importlib.util.spec_from_file_location("_pullback_recorder", path)
    if spec is None or spec.loader is None:
        return
    recorder = importlib.util.module_from_spec(spec)
    sys.modules["_pullback_recorder"] = recorder
    spec.loader.exec_module(recorder)
    calls, call_bytes, total = os.environ["PULLBACK_RECORD_LIMITS"].split(",")
    limits = recorder.Limits(int(calls), int(call_bytes), int(total))
    inside = os.environ.get("PULLBACK_RECORD_INSIDE", "")
    with open(os.path.join(directory, f"started-{os.getpid()}"), "w", encoding="utf-8"):
        pass  # tells the parent that this Python starts the recorder
    try:
        if inside and importlib.util.find_spec("pullback") is None:
            raise ImportError("pullback is not installed for the program's Python, as --inside "
                              "needs")  # fmt: skip
        recorder.record_this_process(directory, limits, inside)
    except Exception as error:
        # On a full disk the file is empty: that it is there says enough.
        with open(os.path.join(directory, f"failed-{os.getpid()}"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
        raise


def _hand_over() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _start()
except Exception as error:  # the program runs, recorded or not; the parent says what is missing
    sys.stderr.write(f"pullback: this process is not recorded: {error!r}\n")
_hand_over()
