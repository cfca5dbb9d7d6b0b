"""The life of a server process: port, start, readiness, drain, signals, TLS."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines_until(self, text: str) -> str:
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"no {text!r}; {self.process.stderr.read()}")

    def end(self) -> tuple[int, str]:
        code = self.process.wait(100)
        return code, self.process.stderr.read()


def free_port() -> int:
    """A port that the system gives to nobody who asks for any: a connection to it is in its time of waiting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            listener.accept()[0].close()  # who closes first waits
            client.recv(1)
        return listener.getsockname()[1]


@pytest.fixture
def launch() -> Iterator[Callable[..., ServerProcess]]:
    processes = []

    def start(*, start_s: float = 0.0, holds: bool = False, **options: object) -> ServerProcess:
        port = options.setdefault("port", free_port())
        command = [
            sys.executable,
            "-m",
            "tests.fakes.scripted_server",
            json.dumps(options),
            str(start_s),
            str(int(holds)),
        ]
        root = Path(__file__).parents[2]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=root)
        processes.append(process)
        return ServerProcess(process, port)

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(100)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def wait_for(url: str, **options: object) -> httpx.Response:
    for _ in range(2000):
        try:
            return httpx.get(url, **options)
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"nothing answers at {url}")


def test_the_ready_line_names_model_and_address(launch: Callable[..., ServerProcess]) -> None:
    server = launch(port=0)
    line = server.lines_until("kvist serves")
    found = re.fullmatch(
        r"kvist serves scripted, other-name at (http://127\.0\.0\.1:\d+) \(ready in [\d.]+ s\)\n", line
    )
    assert httpx.get(found[1] + "/ready").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


@pytest.mark.slow
def test_while_starting_it_lives_but_refuses_with_retry_after(launch: Callable[..., ServerProcess]) -> None:
    server = launch(start_s=60)
    assert wait_for(server.url + "/health").status_code == 200
    for answer in (
        httpx.get(server.url + "/ready"),
        httpx.get(server.url + "/v1/models"),
        httpx.post(server.url + "/v1/chat/completions", json=CHAT),
    ):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "being loaded" in answer.json()["error"]["message"]
    assert httpx.get(server.url + "/metrics").status_code == 200
    server.process.send_signal(signal.SIGINT)
    assert server.end()[0] == 0


def test_a_failed_start_ends_with_its_reason_in_one_line(launch: Callable[..., ServerProcess]) -> None:
    code, errors = launch(start_s=-1).end()
    assert (code, errors) == (1, "kvist: the model file is damaged\n")


@pytest.mark.slow
def test_a_taken_port_is_one_clear_line(launch: Callable[..., ServerProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, errors = launch(port=listener.getsockname()[1]).end()
    assert code == 1
    assert re.fullmatch(r"kvist: cannot listen on 127\.0\.0\.1:\d+: Address already in use.*--port.*\n", errors)


@pytest.mark.slow
def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(launch: Callable[..., ServerProcess]) -> None:
    server = launch(holds=True, shutdown_timeout=100.0)
    server.lines_until("kvist serves")
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=CHAT, timeout=100) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "Hello" in line)
        server.process.send_signal(signal.SIGTERM)
        server.lines_until("closing within 100 s")
        refused = httpx.post(server.url + "/v1/chat/completions", json=CHAT)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        assert httpx.get(server.url + "/ready").status_code == 503
        assert httpx.get(server.url + "/health").status_code == 200
        server.process.stdin.write("go on\n")
        server.process.stdin.flush()
        rest = "".join(lines)
    assert " world" in rest
    assert rest.endswith("data: [DONE]")
    assert server.end()[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["timeout", "second signal"])
def test_requests_that_outlive_the_drain_end_with_an_error(launch: Callable[..., ServerProcess], stop: str) -> None:
    server = launch(holds=True, shutdown_timeout=0.2 if stop == "timeout" else 50.0)
    server.lines_until("kvist serves")
    with httpx.stream("POST", server.url + "/v1/chat/completions", json=CHAT, timeout=100) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "Hello" in line)
        server.process.send_signal(signal.SIGTERM)
        server.lines_until("closing")
        if stop == "second signal":
            server.process.send_signal(signal.SIGTERM)
        rest = "".join(lines)
    assert '"error"' in rest
    assert rest.endswith("data: [DONE]")
    assert server.end()[0] == (0 if stop == "timeout" else 128 + signal.SIGTERM)


@pytest.mark.slow
def test_tls_files_make_it_https(launch: Callable[..., ServerProcess], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    server = launch(ssl_keyfile=str(key), ssl_certfile=str(certificate))
    assert "https://" in server.lines_until("kvist serves")
    context = ssl.create_default_context(cafile=str(certificate))
    url = f"https://127.0.0.1:{server.port}"
    assert httpx.get(url + "/v1/models", verify=context).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"ssl_keyfile": "none.pem"}, {"ssl_keyfile": "no.pem", "ssl_certfile": "no.pem"}])
def test_bad_tls_options_are_one_clear_line(launch: Callable[..., ServerProcess], options: dict[str, str]) -> None:
    code, errors = launch(**options).end()
    assert code == 1
    assert errors.startswith("kvist: ")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_logs_hold_request_ids_but_no_text(launch: Callable[..., ServerProcess]) -> None:
    server = launch(log_level="debug")
    server.lines_until("kvist serves")
    headers = {"x-request-id": "my-request", "authorization": "Bearer sesame"}
    body = {"messages": [{"role": "user", "content": "a secret"}]}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello wide world"
    server.process.send_signal(signal.SIGTERM)
    _, log = server.end()
    assert re.search(r"INFO http request_id=my-request POST /v1/chat/completions status=200", log)
    assert not re.search("secret|Hello|sesame", log)
