"""Loads the device of second.cpp, which lies beside this file, when torch is imported."""

import ctypes
import importlib
from pathlib import Path


class _Second:
    """What torch asks of the module of a device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.is_initialized = library.second_is_used
        self.is_initialized.restype = ctypes.c_bool
        self.is_lost = library.second_is_lost
        self.is_lost.restype = ctypes.c_bool

    def _synchronize(self, device: object = None) -> None:
        if self.is_lost():
            raise RuntimeError("Second error: device-side assert triggered")

    def __getattr__(self, name: str) -> object:
        torch = importlib.import_module("torch")
        known = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "manual_seed_all": lambda seed: None,
            "get_rng_state": lambda device=None: torch.get_rng_state(),
            "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
            "synchronize": self._synchronize,
            "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
            "_is_in_bad_fork": lambda: False,
        }
        if name not in known:
            raise AttributeError(name)
        return known[name]


def load() -> None:
    """Register the device; torch calls this by the entry point ``torch.backends``."""
    torch = importlib.import_module("torch")
    library = ctypes.CDLL(str(Path(__file__).with_name("second.so")))
    torch.utils.rename_privateuse1_backend("second")
    torch._register_device_module("second", _Second(library))
    # Tests have modules whose parts are called so: none of them is hidden by a method.
    torch.utils.generate_methods_for_privateuse1_backend(for_module=False)
