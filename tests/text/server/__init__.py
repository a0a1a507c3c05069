"""A real OpenAI-compatible HTTP server on loopback, with faults on demand."""

from tests.text.server._server import Server
from tests.text.server.faults import (
    drop,
    empty_choices,
    hang,
    malformed,
    status,
    stream_cut,
    truncated,
)

__all__ = [
    "Server",
    "drop",
    "empty_choices",
    "hang",
    "malformed",
    "status",
    "stream_cut",
    "truncated",
]
