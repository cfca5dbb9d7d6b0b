"""An engine side without an engine: answers with a script, counts what is open, and can be told to refuse or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from kvist.core.errors import InvalidRequestError, KvistError, RequestTooLongError
from kvist.core.request import FinishReason
from kvist.core.request_events import EventBatch
from kvist.runtime.engine_client import EngineStatus
from kvist.runtime.generation_types import (
    GenerationRequest,
    GenerationUpdate,
    ModelInfo,
    PositionLogprobs,
    SampleDelta,
    TokenLogprob,
    Usage,
)
from kvist.server.backend import Backend
from kvist.tokenization.chat_messages import parse_messages
from kvist.tokenization.text_encoder import ChatOptions

MODEL = ModelInfo(
    name="scripted",
    served_names=("scripted", "other-name"),
    max_model_len=512,
    vocab_size=1000,
    eos_token_ids=(2,),
    seed=0,
    default_sampling={"temperature": 0.7},
)


class ScriptedClient:
    """The parts of an EngineClient that routes touch."""

    def __init__(self) -> None:
        self.state = "ready"
        self.reason: str | None = None
        self.heartbeat_age_s = 0.01
        self.num_resets = 0
        self.closed_with: list[float] = []
        self.when_closed: Callable[[], None] = lambda: None

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,
            heartbeat_age_s=self.heartbeat_age_s,
            num_running=1,
            num_waiting=2,
            num_waiting_tokens=20,
            num_total_blocks=100,
            num_free_blocks=60,
            num_evictable_blocks=20,
            reason=self.reason,
        )

    def add_listener(self, listener: Callable[[EventBatch], None]) -> None:
        pass

    async def reset_prefix_cache(self) -> bool:
        self.num_resets += 1
        return True

    async def start_profile(self) -> str:
        return "trace.json"

    async def stop_profile(self) -> str:
        raise InvalidRequestError("no trace is being written")

    async def close(self, *, drain_s: float) -> None:
        self.closed_with.append(drain_s)
        self.when_closed()


class ScriptedGenerator:
    """Says `words` one by one, a token each, and then stops."""

    def __init__(self, words: Sequence[str] = ("Hello", " wide", " world")) -> None:
        self.client = ScriptedClient()
        self.model = MODEL
        self.words = list(words)
        self.requests: list[GenerationRequest] = []
        self.num_open = 0
        self.refuse_with: KvistError | None = None
        self.fail_after: int | None = None
        self.fail_with: Exception | FinishReason = FinishReason.ERROR
        self.hang_before_taking = False
        self.hang_after: int | None = None
        self.pause_after: int | None = None
        self.pause = asyncio.Event()

    def validate(self, request: GenerationRequest) -> None:
        if len(request.prompt_token_ids) > self.model.max_model_len:
            raise RequestTooLongError("the prompt is too long", param="prompt")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationUpdate, None]:
        self.requests.append(request)
        if self.refuse_with is not None:
            raise self.refuse_with
        self.num_open += 1
        try:
            if self.hang_before_taking:
                await asyncio.Event().wait()
            num_prompt = len(request.prompt_token_ids)
            scores = [_position(token) for token in request.prompt_token_ids[1:]]
            scored = scores if request.sampling.prompt_logprobs is not None else None
            yield GenerationUpdate([], Usage(num_prompt, 0, 3), scored)
            n = request.sampling.n
            for number, word in enumerate(self.words):
                await asyncio.sleep(0)
                if number == self.hang_after:
                    await asyncio.Event().wait()
                if number == self.pause_after:
                    await self.pause.wait()
                if number == self.fail_after:
                    if isinstance(self.fail_with, Exception):
                        raise self.fail_with
                    failed = SampleDelta(0, "", [], finish_reason=self.fail_with, error="the step failed")
                    yield GenerationUpdate([failed], Usage(num_prompt, 0, 3), is_final=True)
                    return
                is_last = number == len(self.words) - 1
                logprobs = [_position(number)] if request.sampling.logprobs is not None else None
                deltas = [
                    SampleDelta(i, word, [number], logprobs, FinishReason.STOP if is_last else None) for i in range(n)
                ]
                yield GenerationUpdate(deltas, Usage(num_prompt, (number + 1) * n, 3), is_final=is_last)
        finally:
            self.num_open -= 1


def _position(token_id: int) -> PositionLogprobs:
    token = TokenLogprob(token_id, f"t{token_id}", f"t{token_id}".encode(), -0.5, 1)
    return PositionLogprobs(token, [token, TokenLogprob(token_id + 1, "never", b"never", float("-inf"), 2)])


class CharacterEncoder:
    """One token per character; BOS is 1. The parts of a TextEncoder and its Tokenizer that routes touch."""

    special_token_ids = frozenset({1})

    def __init__(self) -> None:
        self.tokenizer = self

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def encode_text(
        self, text: str, *, add_special_tokens: bool = True, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        ids = [1] * add_special_tokens + [ord(character) % 1000 for character in text]
        return ids if truncate_prompt_tokens is None else ids[-truncate_prompt_tokens:]

    def encode_messages(
        self, messages: object, options: ChatOptions, *, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        text = "".join(str(message["content"]) for message in parse_messages(messages))
        return self.encode_text(text + ">" * options.add_generation_prompt)

    def check_token_ids(self, ids: Sequence[int], *, truncate_prompt_tokens: int | None = None) -> list[int]:
        if any(not 0 <= token < MODEL.vocab_size for token in ids):
            raise InvalidRequestError("no such token id", param="prompt")
        return list(ids) if truncate_prompt_tokens is None else list(ids[-truncate_prompt_tokens:])

    encode = encode_text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(token) for token in token_ids if token != 1 or not skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        return chr(token_id)


def scripted_backend(generator: ScriptedGenerator) -> Backend:
    return Backend(
        client=generator.client,
        generator=generator,
        encoder=CharacterEncoder(),
        startup_phases_s={"load": 0.5},
        cache_config={"block_size": "16"},
    )
