"""AsyncLLM: an engine for asyncio programs. Every call streams; the synchronous LLM is built on it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from kvist.api.growing_output import GrowingOutput
from kvist.api.metric import Metric, read_metrics
from kvist.api.outputs import RequestOutput
from kvist.api.prompts import EncodedPrompt, Message, Prompt, encode_chat, encode_prompt
from kvist.assembly.start_engine import RunningEngine, start_engine
from kvist.config.engine_config import EngineConfig
from kvist.config.load import engine_config_from_keywords
from kvist.config.model_config import DEFAULT_MODEL
from kvist.core.errors import EngineUnavailableError, InvalidRequestError
from kvist.core.sampling_params import SamplingParams
from kvist.metrics.recorder import MetricsRecorder
from kvist.runtime.engine_facts import facts_of
from kvist.runtime.generation_types import GenerationRequest
from kvist.runtime.messages import StartPhase
from kvist.runtime.real_clock import RealClock
from kvist.tokenization.text_encoder import ChatOptions
from kvist.tokenization.tokenizer import Tokenizer


class AsyncLLM:
    """One model, ready to generate. All methods are to be used on one asyncio loop.

        async with AsyncLLM("smollm2-135m-instruct") as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=50)):
                print(output.outputs[0].text)

    model: catalogue name, path or Hugging Face id. options: the flags of `kvist serve` with underscores, such as
    `max_num_seqs=8`. Raises ConfigError for unknown ones, naming the nearest.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, engine_client: str = "thread", **options: Any) -> None:
        self.config: EngineConfig = engine_config_from_keywords({"model": model, **options})
        self.recorder = MetricsRecorder()
        self._engine_client = engine_client
        self._engine: RunningEngine | None = None
        self._serials = itertools.count()
        self._clock = RealClock()

    async def start(self, on_phase: Callable[[StartPhase], None] | None = None) -> None:
        """Load the model and start the engine. Raises KvistError for whatever prevents it."""
        if self._engine is None:
            self._engine = await start_engine(
                self.config, engine_client=self._engine_client, on_phase=on_phase, listener=self.recorder.record
            )

    async def shutdown(self, *, drain_s: float = 0.0) -> None:
        """Let running requests finish for at most `drain_s`, abort the rest and free the engine."""
        if self._engine is not None:
            await self._engine.client.close(drain_s=drain_s)
            self._engine = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    @property
    def engine(self) -> RunningEngine:
        """Raises EngineUnavailableError before `start` and after `shutdown`."""
        if self._engine is None:
            raise EngineUnavailableError("the engine is not running: use 'async with AsyncLLM(...)' or await start()")
        return self._engine

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.encoder.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used for calls without sampling parameters: the model file's, else the built-in ones."""
        return SamplingParams(**self.engine.model.default_sampling)  # type: ignore[arg-type]  # checked when read

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the request's output as it grows, each time in full; the last has `finished`.

        Closing the iterator aborts the request. Raises KvistError as TextGenerator.generate does.
        """
        encoded = encode_prompt(prompt, self.engine.encoder)
        async with aclosing(
            self.generate_encoded(encoded, sampling_params, request_id, priority=priority, deadline_s=deadline_s)
        ) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `generate`, for a conversation rendered with the model's chat template."""
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        encoded = encode_chat(messages, self.engine.encoder, options)
        async with aclosing(self.generate_encoded(encoded, sampling_params, request_id)) as outputs:
            async for output in outputs:
                yield output

    async def generate_encoded(
        self,
        prompt: EncodedPrompt,
        sampling_params: SamplingParams | None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `generate`, for a prompt that is tokenized already."""
        engine = self.engine
        sampling = self.get_default_sampling_params() if sampling_params is None else sampling_params
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params must be SamplingParams, not {type(sampling).__name__}", param="sampling_params"
            )
        request = GenerationRequest(
            request_id=request_id or f"request-{next(self._serials)}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            priority=priority,
            deadline_s=deadline_s,
        )
        growing = GrowingOutput(request, prompt, self._clock.now_s())
        async with aclosing(engine.generator.generate(request)) as updates:
            async for update in updates:
                growing.add(update, self._clock.now_s())
                yield growing.output

    async def abort(self, request_id: str) -> None:
        """End the request; its iterator yields what there is, with finish_reason "abort". No effect if unknown."""
        await self.engine.generator.abort(request_id)

    def get_metrics(self) -> list[Metric]:
        """Counters, gauges and histograms, under the names that the server exports."""
        engine = self.engine
        facts = facts_of(
            engine.client.status(),
            model_name=engine.model.served_names[0],
            startup_phases_s=engine.start_phases_s,
        )
        return read_metrics(self.recorder, facts)

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that no request holds. Returns whether the cache is then empty."""
        return await self.engine.client.reset_prefix_cache()

    async def start_profile(self) -> str:
        """Begin the trace that the option `trace` names, if `trace_on_demand` holds it back; return its file."""
        return await self.engine.client.start_profile()

    async def stop_profile(self) -> str:
        """End the trace and return its file."""
        return await self.engine.client.stop_profile()
