"""A server on loopback that answers chat completions from a script, to test clients against."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeOpenAIServer:
    """`pieces` are streamed as one answer, one event each; a dict among them is sent as it is, say an error."""

    pieces: list[str | dict[str, Any]]
    api_key: str | None = None
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def serve_fake_openai(server: FakeOpenAIServer) -> Iterator[FakeOpenAIServer]:
    """Run the server on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            if self._is_allowed():
                self._send(200, "application/json", {"data": [{"id": "the-model"}]})

        def do_POST(self) -> None:
            if not self._is_allowed():
                return
            server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for piece in server.pieces:
                event = {"choices": [{"delta": {"content": piece}}]} if isinstance(piece, str) else piece
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def _is_allowed(self) -> bool:
            allowed = server.api_key is None or self.headers.get("Authorization") == f"Bearer {server.api_key}"
            if not allowed:
                self._send(401, "application/json", {"error": {"message": "no such key"}})
            return allowed

        def _send(self, status: int, kind: str, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
