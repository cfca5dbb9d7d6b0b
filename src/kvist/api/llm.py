"""LLM: batch generation for programs without asyncio. Runs an AsyncLLM on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

from kvist.api.async_llm import AsyncLLM
from kvist.api.metric import Metric
from kvist.api.outputs import RequestOutput
from kvist.api.progress_bar import Progress, progress_bar
from kvist.api.prompts import (
    EncodedPrompt,
    Message,
    Prompt,
    encode_chat,
    encode_prompt,
    split_conversations,
    split_prompts,
)
from kvist.config.model_config import DEFAULT_MODEL
from kvist.core.errors import InvalidRequestError, QueueFullError
from kvist.core.sampling_params import SamplingParams
from kvist.tokenization.text_encoder import ChatOptions
from kvist.tokenization.tokenizer import Tokenizer

T = TypeVar("T")

MAX_RETRY_S = 1.0  # between two tries to enter a full queue


class LLM:
    """A model in this program.

        llm = LLM("smollm2-135m-instruct")
        for output in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)

    model: catalogue name, path or Hugging Face id. options: the flags of `kvist serve` with underscores, such as
    `max_num_seqs=8`. Raises ConfigError for unknown ones, naming the nearest, and KvistError if the engine does not
    start. Use it as a context manager, or call `shutdown`, to free the model before the program ends.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, engine_client: str = "thread", **options: Any) -> None:
        self._llm = AsyncLLM(model, engine_client=engine_client, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kvist-llm", daemon=True)
        self._thread.start()
        self._serials = itertools.count()
        self._enqueued: list[Future[list[RequestOutput]]] = []
        self._places: asyncio.Semaphore
        try:
            self._run(self._llm.start())
        except BaseException:
            self.shutdown()
            raise
        self._places = asyncio.Semaphore(self._llm.config.scheduler.max_num_queued_reqs)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Complete the prompts and return the outputs in their order.

        prompts: one or a list of: text, token ids, {"prompt": text}, {"prompt_token_ids": ids}. sampling_params: one
        for all or one each; None: the model's defaults. use_tqdm: show progress on stderr; None: if it is a terminal.
        Ctrl-C aborts all and raises KeyboardInterrupt. Raises KvistError if a request cannot be served.
        """
        encoded = self._encode(prompts)
        return self._wait_for(
            self._submit(encoded, sampling_params, priority, progress_bar(len(encoded), use_tqdm=use_tqdm))
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, rendered with the model's chat template; else as `generate`."""
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        encoder = self._llm.engine.encoder
        encoded = [encode_chat(conversation, encoder, options) for conversation in split_conversations(messages)]
        return self._wait_for(self._submit(encoded, sampling_params, 0, progress_bar(len(encoded), use_tqdm=use_tqdm)))

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> None:
        """Start `generate` and return at once; `wait_for_completion` gives the outputs."""
        encoded = self._encode(prompts)
        self._enqueued.append(
            self._submit(encoded, sampling_params, priority, progress_bar(len(encoded), use_tqdm=False))
        )

    def wait_for_completion(self) -> list[RequestOutput]:
        """Wait for all that was enqueued and return the outputs in order."""
        enqueued, self._enqueued = self._enqueued, []
        return [output for future in enqueued for output in self._wait_for(future)]

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used for calls without sampling parameters: the model file's, else the built-in ones."""
        return self._llm.get_default_sampling_params()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges of the engine, under the names that the server exports."""
        return self._llm.get_metrics()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes that no request holds. Returns whether the cache is then empty."""
        return self._run(self._llm.reset_prefix_cache())

    def start_profile(self) -> str:
        """Begin the trace that the option `trace` names, if `trace_on_demand` holds it back; return its file."""
        return self._run(self._llm.start_profile())

    def stop_profile(self) -> str:
        """End the trace and return its file."""
        return self._run(self._llm.stop_profile())

    def shutdown(self) -> None:
        """Abort what runs and free the model. Safe to call twice."""
        if not self._loop.is_closed():
            self._run(self._cancel_running())
            self._run(self._llm.shutdown())
            self._run(self._loop.shutdown_asyncgens())
            self._run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _cancel_running(self) -> None:
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _encode(self, prompts: Prompt | Sequence[Prompt]) -> list[EncodedPrompt]:
        encoder = self._llm.engine.encoder
        return [encode_prompt(prompt, encoder) for prompt in split_prompts(prompts)]

    def _submit(
        self,
        prompts: Sequence[EncodedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
        progress: Progress,
    ) -> Future[list[RequestOutput]]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        sampling = _one_each(sampling_params, len(prompts), "sampling_params")
        priorities = _one_each(priority, len(prompts), "priority")
        jobs = list(zip(prompts, sampling, priorities, strict=True))
        return asyncio.run_coroutine_threadsafe(self._generate_all(jobs, progress), self._loop)

    async def _generate_all(
        self, jobs: Sequence[tuple[EncodedPrompt, SamplingParams, int]], progress: Progress
    ) -> list[RequestOutput]:
        with progress:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._generate_one(*job, progress)) for job in jobs]
        return [task.result() for task in tasks]

    async def _generate_one(
        self, prompt: EncodedPrompt, sampling: SamplingParams, priority: int, progress: Progress
    ) -> RequestOutput:
        request_id = str(next(self._serials))
        async with self._places:
            while True:
                try:
                    outputs = self._llm.generate_encoded(prompt, sampling, request_id, priority=priority)
                    async with aclosing(outputs):
                        async for output in outputs:
                            last = output
                    progress.advance(sum(len(sample.token_ids) for sample in last.outputs))
                    return last
                except QueueFullError as error:  # others are before us: a batch has time
                    await asyncio.sleep(min(error.retry_after_s, MAX_RETRY_S))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._wait_for(asyncio.run_coroutine_threadsafe(call, self._loop))

    @staticmethod
    def _wait_for(future: Future[T]) -> T:
        """Wait for `future`; on Ctrl-C cancel it, which aborts its requests. Unpacks a lone error of a group."""
        try:
            return future.result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        except KeyboardInterrupt:
            future.cancel()
            raise


def _one_each(value: T | Sequence[T], count: int, name: str) -> list[T]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise InvalidRequestError(f"{name} has {len(value)} entries for {count} prompts", param=name)
        return list(value)
    return [value] * count
