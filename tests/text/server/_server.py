"""The server: answers, streams and bills; a list of faults says what goes wrong, in order."""

import collections
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.text.server.faults import Fault


def echo(body: dict[str, Any]) -> str:
    """Answer with the last message."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else json.dumps(content)


class Server:
    """A server in a thread of its own; use it as a context manager.

    Arguments:
        answer: the text of an answer, or the fields of its message, from the request's body.
        faults: for each request in turn a fault, or None to answer it.
        delay: seconds before each answer, and between the pieces of a stream.
        idempotent: whether a second request with the same Idempotency-Key gets the first answer.

    What it saw is in `bodies`, `headers` and `billed`: for each answer that it made, the key.
    `most` is the most requests that it had at once.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Any] = echo,
        faults: Iterable[Fault | None] = (),
        *,
        delay: float = 0.0,
        idempotent: bool = True,
    ) -> None:
        self.answer = answer
        self.faults = collections.deque(faults)
        self.delay = delay
        self.idempotent = idempotent
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.billed: collections.Counter[str] = collections.Counter()
        self.tokens = 0
        self.most = self.current = 0
        self.lock = threading.Lock()
        self._answers: dict[str, dict[str, Any]] = {}
        self._http = _HTTP(("127.0.0.1", 0), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def opened(self) -> int:
        """How many connections it was asked for."""
        return self._http.opened

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.closing.set()
        self._http.shutdown()
        for connection in list(self._http.connections):
            connection.close()
        self._http.server_close()
        self._thread.join()

    def reply(self, body: dict[str, Any], key: str = "") -> dict[str, Any]:
        """An answer, which is billed unless its key has been."""
        with self.lock:
            if self.idempotent and key in self._answers:
                return self._answers[key]
        made = self.answer(body)
        message = {"content": made} if isinstance(made, str) else dict(made)
        finish = message.pop("finish_reason", "tool_calls" if "tool_calls" in message else "stop")
        usage = message.pop("usage", None)
        if usage is None:
            words = len(json.dumps(body["messages"]).split())
            used = len(str(message.get("content") or "").split())
            usage = {"prompt_tokens": words, "completion_tokens": used,
                     "total_tokens": words + used}  # fmt: skip
        whole = {
            "id": f"chatcmpl-{len(self.billed)}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
            ],
            "usage": usage or None,
        }
        with self.lock:
            self.billed[key] += 1
            self.tokens += usage.get("total_tokens", 0)
            if key:
                self._answers[key] = whole
        return whole

    def events(self, body: dict[str, Any], key: str = "") -> list[bytes]:
        """The same answer as the events of a stream."""
        whole = self.reply(body, key)
        choice = whole["choices"][0]
        head = {name: whole[name] for name in ("id", "created", "model")}
        head["object"] = "chat.completion.chunk"
        pieces: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
        text = choice["message"].get("content") or ""
        for start in range(0, len(text), 4):
            pieces.append({"delta": {"content": text[start : start + 4]}})
        for number, call in enumerate(choice["message"].get("tool_calls", ())):
            first = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
            pieces.append({"delta": {"tool_calls": [first]}})
            arguments = call["function"]["arguments"]
            for start in range(0, len(arguments), 5):
                part = {"index": number, "function": {"arguments": arguments[start : start + 5]}}
                pieces.append({"delta": {"tool_calls": [part]}})
        pieces.append({"delta": {}, "finish_reason": choice["finish_reason"]})
        events: list[dict[str, Any]] = [
            {**head, "choices": [{"index": 0, "finish_reason": None, **piece}]} for piece in pieces
        ]
        events.append({**head, "choices": [], "usage": whole["usage"]})
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        return [*lines, b"data: [DONE]\n\n"]


class _HTTP(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        self.owner: Any = None
        self.closing = threading.Event()
        self.connections: set[socket.socket] = set()
        self.opened = 0
        super().__init__(*args)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what some tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)
        self.server.opened += 1

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        listed = {"object": "list", "data": [{"id": "served", "object": "model"}]}
        self.send(200 if known else 404, json.dumps(listed if known else {}).encode())

    def do_POST(self) -> None:
        owner = self.server.owner
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            self.send(404, b'{"error": {"message": "no such path"}}')
            return
        body = json.loads(raw)
        with owner.lock:
            owner.bodies.append(body)
            owner.headers.append({name.lower(): text for name, text in self.headers.items()})
            fault = owner.faults.popleft() if owner.faults else None
            owner.current += 1
            owner.most = max(owner.most, owner.current)
        try:
            if fault is not None:
                fault(self, body)
                return
            self.answer(body)
        finally:
            with owner.lock:
                owner.current -= 1

    def answer(self, body: dict[str, Any]) -> None:
        owner = self.server.owner
        key = self.headers.get("Idempotency-Key", "")
        if owner.delay:
            time.sleep(owner.delay)
        if not body.get("stream"):
            self.send(200, json.dumps(owner.reply(body, key)).encode())
            return
        self.head(200, None, "text/event-stream")
        for event in owner.events(body, key):
            self.chunk(event)
            if owner.delay:
                time.sleep(owner.delay)
        self.wfile.write(b"0\r\n\r\n")

    def head(
        self, code: int, length: int | None, kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.send_response(code)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.head(code, len(content), headers=headers)
        self.wfile.write(content)

    def chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
