"""Make the repro of a finding run outside of this process, where shims are gone."""

import os
import re
from dataclasses import replace

from pullback.cli._tasks import Task
from pullback.conformance._replayed import ReplayedFunction
from pullback.conformance._report import Finding
from pullback.conformance._shims import SHIM_PREFIX

__all__ = ["portable"]

_IMPORT_SHIM = re.compile(rf"^from {SHIM_PREFIX}\w+ import (\w+) as F", re.MULTILINE)
_PLACEHOLDER = re.compile(rf"'{ReplayedFunction.placeholder(0)[:-1]}(\d+)'")


def portable(finding: Finding, task: Task, number: int) -> Finding:
    """Return the finding with a repro that loads what has no name from script and recording.

    Arguments:
        finding: what was found at one call.
        task: the Function.
        number: the number of the call in the recording.

    Returns:
        The same finding where nothing had to be replaced.
    """
    repro = finding.repro
    if task.script:
        load = f"load_script({task.script!r}, '\\1')"
        repro = _IMPORT_SHIM.sub(
            rf"from pullback.conformance.replay import load_script; F = {load}.\1", repro
        )
    if _PLACEHOLDER.search(repro):
        recording = os.path.abspath(task.recording)
        loaded = f"recorded = load_call({recording!r}, {task.name!r}, {number})[1]"
        repro = _PLACEHOLDER.sub(r"recorded[\1]", repro)
        first = f"import torch; from pullback.conformance.replay import load_call; {loaded}"
        repro = repro.replace("import torch", first, 1)
    return finding if repro == finding.repro else replace(finding, repro=repro)
