"""What a repro uses to get at recorded calls and at Functions defined in scripts."""

from pullback.conformance._program import load_script
from pullback.conformance._recording import load_call

__all__ = ["load_call", "load_script"]
