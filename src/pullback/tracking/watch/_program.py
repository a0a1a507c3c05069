"""Track a program that knows nothing of it: ``python -m pullback.tracking.watch._program``.

The module runs another program in its own process, as ``python`` would, with hooks on every
module's call. The outermost module that is called becomes a root the first time: it and its parts
are tracked from then on. Any optimizer's step ends a step.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pullback.internal._as_main import run_as_main
from pullback.internal.torch import uncompiled
from pullback.tracking.run._log import Run
from pullback.tracking.watch._hooks import Attachment, choose_by
from pullback.tracking.watch._optimizers import StepWatch
from pullback.tracking.watch._track import Recorder

__all__ = ["main"]


class ProgramTracker(Recorder):
    """Finds the models of a running program by themselves, and tracks them.

    Each step is written to the file ``jsonl``, which is as it was until a module is tracked.
    """

    def __init__(
        self, every: int, names: Sequence[str], history: int, jsonl: str, title: str
    ) -> None:
        super().__init__(title, every, history)
        self._attachment = Attachment(self._store)
        self._watch = StepWatch(None, self._store.advance)
        self._chosen = choose_by(names or None)
        self._known: WeakSet[nn.Module] = WeakSet()
        self._prefixes: Counter[str] = Counter()
        self._jsonl = jsonl
        self._handle: Any = None

    def start(self) -> None:
        """Listen to every module and optimizer of this process."""
        # These hooks pass over the wrapper that torch.compile makes, so its warning is moot.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are")
        self._handle = register_module_forward_pre_hook(self._before)
        self._watch.start()

    def stop(self) -> Run:
        """Take off all hooks, finish the journal, and give what was recorded."""
        self._handle.remove()
        self._watch.stop()
        self._attachment.detach()
        self._finish()
        return self.run()

    def _told(self) -> dict[str, Any]:
        return {"noise": self._attachment.noise()}

    def _before(self, module: nn.Module, inputs: Any) -> None:
        # Parts of a tracked model, and all that runs in compiled code, have nothing to add.
        if torch.compiler.is_compiling() or module in self._known:
            return
        if isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule)):
            return  # the first runs outside Python; the second is what a compiler made of a root
        root = uncompiled(module)
        kind = type(root).__name__
        number = self._prefixes[kind]
        self._prefixes[kind] += 1
        prefix = f"{kind}#{number}." if number else f"{kind}."
        known = self._known
        fresh = {part for part in root.modules() if part not in known}
        for part in root.modules():
            known.add(part)
        known.add(module)
        watched = self._attachment.attach(
            root, lambda name, part: part in fresh and self._chosen(name, part), prefix
        )
        if watched and not self._log.sinks:
            self._write_to(self._jsonl)
        # The root is being called already: its own pre-hook comes too late for this pass.
        self._store.begin(prefix, root.training)


def main(arguments: Sequence[str]) -> None:
    """Track one program, given the options as JSON and the program's own command line."""
    options, *command = arguments
    tracker = ProgramTracker(**json.loads(options))
    tracker.start()
    try:
        beside = not sys.flags.safe_path
        del sys.path[:beside]  # where Python has found this module
        run_as_main(command, beside=beside)
    finally:
        tracker.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
