"""Text to tokens of the served model and back: by a tokenizer of this machine, or by asking the server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvist.bench.http_connection import parse_url
from kvist.core.errors import ConfigError, EngineUnavailableError
from kvist.tokenization.loading import load_tokenizer
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model

TIMEOUT_S = 60.0


class TextCodec(Protocol):
    """Both ways without special tokens. Raises EngineUnavailableError where a server was asked and is gone."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def close(self) -> None: ...


class LocalCodec:
    """The tokenizer of a checkpoint that this machine has or can fetch."""

    def __init__(self, model: str) -> None:
        self._tokenizer = load_tokenizer(open_checkpoint(resolve_model(model)))

    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def close(self) -> None:
        """Nothing is open."""


class ServerCodec:
    """The server's own tokenizer: POST /tokenize and /detokenize of kvist, vLLM, llama-server and SGLang.

    Blocks while it asks, so it is used before a measurement only.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], model: str) -> None:
        parts = parse_url(base_url)
        self._url = base_url
        self._root, self._headers, self._model = parts.path, dict(headers), model
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(str(parts.hostname), parts.port, timeout=TIMEOUT_S)

    def encode(self, text: str) -> Sequence[int]:
        # llama-server calls the text `content`; kvist, vLLM and SGLang call it `prompt`.
        fields = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = self._ask("/tokenize", fields, {"content": text, "add_special": False})
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise _NO_TOKENIZER
        return tokens

    def decode(self, token_ids: Sequence[int]) -> str:
        tokens = list(token_ids)
        answer = self._ask("/detokenize", {"model": self._model, "tokens": tokens}, {"tokens": tokens})
        text = answer.get("prompt", answer.get("content", answer.get("text")))
        if not isinstance(text, str):
            raise _NO_TOKENIZER
        return text

    def close(self) -> None:
        self._connection.close()

    def _ask(self, route: str, fields: dict[str, Any], other_fields: dict[str, Any]) -> Any:  # Any: JSON
        for body in (fields, other_fields):
            try:
                status, content = self._post(route, json.dumps(body))
                answer = json.loads(content) if status == 200 else None
            except TimeoutError as error:
                message = f"{self._url} gave no answer to POST {route} within {TIMEOUT_S:g} s"
                raise EngineUnavailableError(message) from error
            except http.client.HTTPException as error:  # it took the connection again, and hung up again
                raise ConfigError(f"POST {route} failed: {error!r}. {_ADVICE}") from error
            except OSError as error:
                raise EngineUnavailableError(
                    f"{self._url} went away while it was asked for tokens (POST {route}: {error.strerror or error}). "
                    "Is the server still there?"
                ) from error
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"POST {route} gives no JSON: {error}. {_ADVICE}") from error
            if isinstance(answer, dict) and any(answer.get(name) for name in ("tokens", "prompt", "content", "text")):
                return answer
        raise _NO_TOKENIZER

    def _post(self, route: str, body: str) -> tuple[int, bytes]:
        """Status and content. A second try on a new connection: servers close those that were idle for seconds."""
        for is_last in (False, True):
            try:
                self._connection.request("POST", self._root + route, body, self._all_headers())
                response = self._connection.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                if is_last or isinstance(error, TimeoutError):
                    raise
        raise AssertionError("unreachable")

    def _all_headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **self._headers}


_ADVICE = "Name the model's tokenizer: --tokenizer with a catalogue name, a .gguf file, a folder or a Hugging Face id."
_NO_TOKENIZER = ConfigError(f"the server has no /tokenize and /detokenize that could be used. {_ADVICE}")
