"""The one codec of arguments: live values as plain data, for a file or a process, and back."""

from pullback.recording.codec._decode import Keywords, decode_call, describe_fault
from pullback.recording.codec._encode import EXPRESSION, TENSORS, Encoder, NotPlain, Traced
from pullback.recording.codec._loader import Loader, StrictLoader

__all__ = [
    "EXPRESSION",
    "TENSORS",
    "Encoder",
    "Keywords",
    "Loader",
    "NotPlain",
    "StrictLoader",
    "Traced",
    "decode_call",
    "describe_fault",
]
