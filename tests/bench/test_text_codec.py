"""The server's own tokenizer, through connections that do not last."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvist.bench.text_codec import ServerCodec
from kvist.core.errors import ConfigError, EngineUnavailableError


class LlamaServer(BaseHTTPRequestHandler):
    """As llama-server names the fields; each connection ends after its first answer, without a word."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        fields = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            answer = {"tokens": list(fields.get("content", "").encode())}
        else:
            answer = {"content": bytes(fields["tokens"]).decode()}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *words: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LlamaServer) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()
        thread.join()


def test_text_goes_both_ways_however_often_the_server_hangs_up(url: str) -> None:
    codec = ServerCodec(url, {}, "m")
    for _ in range(3):
        assert codec.decode(codec.encode("two words")) == "two words"
    codec.close()


def test_a_server_without_a_tokenizer_is_told_apart(url: str) -> None:
    codec = ServerCodec(url + "/nowhere", {}, "m")
    with pytest.raises(ConfigError, match="--tokenizer"):
        codec.encode("")
    codec.close()


def test_a_server_that_went_away_is_not_taken_for_one_without_a_tokenizer() -> None:
    gone = ServerCodec("http://127.0.0.1:1", {}, "m")
    with pytest.raises(EngineUnavailableError, match=r"http://127.0.0.1:1 went away while it was asked for tokens"):
        gone.encode("x")
