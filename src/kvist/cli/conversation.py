"""Where `kvist chat` gets its answers: the interface, and the form that asks a running server over HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

from kvist.core.errors import EngineUnavailableError, InvalidRequestError

Message = dict[str, str]  # role and content
CONNECT_TIMEOUT_S = 10.0


class Conversation(Protocol):
    """Answers conversations. Closing the generator early stops the answer at its source."""

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        """Yield the pieces of the answer as they come. Raises a KvistError saying what went wrong."""
        ...

    def close(self) -> None: ...


class HttpConversation:
    """Talks to an OpenAI-compatible server. Closing the connection is what stops an answer."""

    def __init__(self, url: str, *, api_key: str | None, model: str | None, options: dict[str, Any]) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(f"--url must look like http://127.0.0.1:8000, not {url!r}", param="url")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._options = options
        self.model = model or self._first_model()

    def answer(self, messages: list[Message]) -> Generator[str, None, None]:
        """Stream one chat completion."""
        body = {"model": self.model, "messages": messages, "stream": True, **self._options}
        connection, response = self._request("POST", "/v1/chat/completions", body)
        try:
            for event in _events(response):
                if "error" in event:
                    raise EngineUnavailableError(event["error"].get("message", "the server failed"))
                for choice in event.get("choices", []):
                    piece = choice.get("delta", {}).get("content")
                    if piece:
                        yield piece
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise EngineUnavailableError(f"the server broke off its answer: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing stays open between answers."""

    def _first_model(self) -> str:
        connection, response = self._request("GET", "/v1/models", None)
        try:
            return str(json.loads(response.read())["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise EngineUnavailableError(f"{self._host} does not answer like an OpenAI-compatible server") from error
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # a long queue or prompt may take its time
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, self._root + path, text, self._headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise _refusal(response)
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise EngineUnavailableError(f"no answer from {self._host}:{connection.port}: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection, response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in response:
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


def _refusal(response: http.client.HTTPResponse) -> EngineUnavailableError | InvalidRequestError:
    text = response.read(65536).decode("utf-8", "replace")
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = text.strip()[:200] or response.reason
    kind = EngineUnavailableError if response.status >= http.client.INTERNAL_SERVER_ERROR else InvalidRequestError
    return kind(f"the server says {response.status}: {message}")
