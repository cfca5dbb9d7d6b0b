"""A Hugging Face Hub on loopback: repositories of files in memory, ranges, and downloads that break off."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """repositories: "org/repo" -> file name -> content. break_off: file names whose next download ends half-way."""

    def __init__(self) -> None:
        self.repositories: dict[str, Mapping[str, bytes]] = {}
        self.gated: set[str] = set()
        self.break_off: set[str] = set()
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, Range
        self.url = ""


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serve a FakeHub on a free port of 127.0.0.1 until the block ends."""
    hub = FakeHub()

    class Handler(_Handler):
        fake = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.fake.requests.append((self.command, path, self.headers.get("Range")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._answer_model("/".join(parts[2:4]))
        else:
            self._answer_file("/".join(parts[:2]), "/".join(parts[4:]))

    def _fail(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code})

    def _answer_model(self, repo: str) -> None:
        files = self.fake.repositories.get(repo)
        if files is None:
            self._fail(404, "RepoNotFound")
            return
        siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
        body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _answer_file(self, repo: str, name: str) -> None:
        if repo in self.fake.gated:
            self._fail(403, "GatedRepo")
            return
        content = self.fake.repositories[repo].get(name)
        if content is None:
            self._fail(404, "EntryNotFound")
            return
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        status, start = 200, 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status = 206
        if self.command == "GET" and name in self.fake.break_off:
            self.fake.break_off.remove(name)
            self._send(status, content[start:], headers, num_bytes=(len(content) - start) // 2)
            self.close_connection = True
        else:
            self._send(status, content[start:], headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], num_bytes: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:num_bytes])
