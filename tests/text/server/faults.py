"""What can go wrong with one request: each fault is a function of the handler and the request."""

import json
import time
from collections.abc import Callable
from typing import Any

Fault = Callable[[Any, dict[str, Any]], None]


def status(
    code: int, message: str = "no", retry_after: float | str | None = None, error_code: str = "",
    kind: str = "error",
) -> Fault:  # fmt: skip
    """An HTTP error, as OpenAI writes them."""

    def fault(handler: Any, body: dict[str, Any]) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        error = {"message": message, "type": kind, "param": None, "code": error_code or None}
        handler.send(code, json.dumps({"error": error}).encode(), headers)

    return fault


def hang(seconds: float) -> Fault:
    """No answer for so long, and then none."""

    def fault(handler: Any, body: dict[str, Any]) -> None:
        handler.server.closing.wait(seconds)
        handler.drop()

    return fault


def drop(handler: Any, body: dict[str, Any]) -> None:
    """The connection ends before an answer."""
    handler.drop()


def truncated(handler: Any, body: dict[str, Any]) -> None:
    """Half of an answer, then the end of the connection."""
    whole = json.dumps(handler.server.owner.reply(body)).encode()
    handler.head(200, len(whole))
    handler.wfile.write(whole[: len(whole) // 2])
    handler.wfile.flush()
    handler.drop()


def malformed(handler: Any, body: dict[str, Any]) -> None:
    """An answer that is no JSON, with the length and type of one that is."""
    handler.send(200, b'{"id": "x", "choices": [{"message": {"content"')


def empty_choices(handler: Any, body: dict[str, Any]) -> None:
    """An answer without a choice."""
    handler.send(200, json.dumps({**handler.server.owner.reply(body), "choices": []}).encode())


def stream_cut(pieces: int = 1, delay: float = 0.0) -> Fault:
    """A stream that ends without its end."""

    def fault(handler: Any, body: dict[str, Any]) -> None:
        handler.head(200, None, "text/event-stream")
        for event in handler.server.owner.events(body)[:pieces]:
            handler.chunk(event)
            time.sleep(delay)
        handler.drop()

    return fault
