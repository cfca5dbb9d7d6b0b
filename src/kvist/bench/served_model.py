"""Finds out what a server offers: is it ready, its model, the extra fields it takes, how tokens can be counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvist.bench.answer_reader import AnswerReader, StreamError, TokenCount, error_message
from kvist.bench.http_connection import HttpServer, StatusError, now_s
from kvist.bench.prompt_writer import PromptForm
from kvist.core.errors import ConfigError, EngineUnavailableError

TRY_AGAIN_S = 0.2
SHORTEST_TRY_S = 0.2  # also where the time is nearly over
USAGE = {"stream_options": {"include_usage": True}}
RUNNING_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
IGNORE_EOS = {"ignore_eos": True}
# What to ask for besides the prompt, best first. A server that knows none of it gets the last.
VARIANTS: tuple[Mapping[str, Any], ...] = (
    {**USAGE, **IGNORE_EOS, "return_token_ids": True},  # kvist, vLLM
    {**RUNNING_USAGE, **IGNORE_EOS},  # SGLang
    {**USAGE, **IGNORE_EOS, "timings_per_token": True},  # llama-server
    {**USAGE, **IGNORE_EOS},
    USAGE,  # OpenAI
    {},
)
QUALITY = list(TokenCount)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What was found out. fields: extra fields that requests should bring."""

    name: str
    max_model_len: int | None
    fields: Mapping[str, Any]
    token_count: TokenCount

    @property
    def ignores_eos(self) -> bool:
        return "ignore_eos" in self.fields


async def wait_until_ready(server: HttpServer, timeout_s: float) -> list[dict[str, Any]]:
    """The server's list of models, as soon as it has one. Raises EngineUnavailableError after `timeout_s`."""
    deadline_s = now_s() + timeout_s
    while True:
        try:
            async with asyncio.timeout(max(deadline_s - now_s(), SHORTEST_TRY_S)):
                models = _models_of(await server.fetch("GET", "/v1/models"))
        except StatusError as error:
            reason = _status_message(error)
            if error.status in (401, 403):
                raise ConfigError(f"{server.url} refuses: {reason}. Give --api-key.") from error
        except TimeoutError:
            reason = "it does not answer"
        except (OSError, ValueError) as error:
            reason = str(error) or repr(error)
        else:
            return models
        if now_s() >= deadline_s:
            raise EngineUnavailableError(f"{server.url} was not ready within {timeout_s:g} s: {reason}")
        await asyncio.sleep(TRY_AGAIN_S)


def _models_of(body: bytes) -> list[dict[str, Any]]:
    """Raises ValueError if this is no list of models."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"GET /v1/models gives no JSON: {body[:60]!r}") from error
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not all(isinstance(model, dict) and "id" in model for model in models):
        raise ValueError(f"GET /v1/models gives no list of models: {body[:60]!r}")
    return models


def choose_model(models: list[dict[str, Any]], asked: str | None) -> tuple[str, int | None]:
    """Name and context (None if not said) of the asked-for model, or of the first."""
    names = [str(model.get("id")) for model in models]
    if not names:
        raise ConfigError("the server lists no model")
    if asked is not None and asked not in names:
        raise ConfigError(f"the server has no model {asked!r}; it has {', '.join(names)}")
    chosen = models[names.index(asked) if asked is not None else 0]
    meta = chosen.get("meta")
    n_ctx = meta.get("n_ctx") if isinstance(meta, dict) else None  # llama-server's, of its slots together
    length = chosen.get("max_model_len", n_ctx)
    return str(chosen["id"]), length if isinstance(length, int) and length > 0 else None


async def probe(
    server: HttpServer,
    path: str,
    model: tuple[str, int | None],
    extra_body: Mapping[str, Any],
    *,
    ignore_eos: bool,
    timeout_s: float = 600.0,
) -> ServedModel:
    """Try what the server takes with a few short requests. Raises EngineUnavailableError if it answers to none.

    timeout_s: for each of them.
    """
    form = PromptForm.MESSAGES if path.endswith("/chat/completions") else PromptForm.TEXT
    text = "Say a few words."
    prompt = {"messages": [{"role": "user", "content": text}]} if form is PromptForm.MESSAGES else {"prompt": text}
    best: ServedModel | None = None
    refusal = ""
    for variant in VARIANTS:
        fields = {name: value for name, value in variant.items() if ignore_eos or name != "ignore_eos"}
        body = {
            "model": model[0],
            **prompt,
            "max_tokens": 4,
            "temperature": 0.0,
            "stream": True,
            **fields,
            **extra_body,
        }
        reader = AnswerReader(int(body.get("n") or 1))
        try:
            async with asyncio.timeout(timeout_s):
                await server.send("POST", path, json.dumps(body).encode(), reader)
            reader.finish()
        except StatusError as error:
            refusal = _status_message(error)
            if error.status in (400, 422):
                continue
            raise EngineUnavailableError(f"POST {path} fails: {refusal}") from error
        except TimeoutError as error:
            raise EngineUnavailableError(f"POST {path} fails: no answer within {timeout_s:g} s") from error
        except (StreamError, OSError) as error:
            raise EngineUnavailableError(f"POST {path} fails: {error}") from error
        count = _how_counted(reader)
        if best is None or QUALITY.index(count) < QUALITY.index(best.token_count):
            best = ServedModel(name=model[0], max_model_len=model[1], fields=fields, token_count=count)
        if count in (TokenCount.IDS, TokenCount.RUNNING):
            break
    if best is None:
        raise EngineUnavailableError(f"POST {path} takes no form of request: {refusal}")
    return best


def _how_counted(reader: AnswerReader) -> TokenCount:
    if any(sample.token_ids for sample in reader.samples):
        return TokenCount.IDS
    if all(sample.tells_counts for sample in reader.samples):
        return TokenCount.RUNNING
    if reader.usage is not None and reader.usage.completion_tokens:
        return TokenCount.TOTAL
    return TokenCount.TEXT


def _status_message(error: StatusError) -> str:
    try:
        return f"status {error.status}: {error_message(json.loads(error.body))}"
    except ValueError:
        return f"status {error.status}: {error.body[:200].decode(errors='replace')}"
