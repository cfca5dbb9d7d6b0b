"""Starts an engine and loads the text side beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.assembly.engine_command import ENGINE_COMMAND
from kvist.config.cache_folder import cache_folder
from kvist.config.engine_config import EngineConfig
from kvist.config.model_config import ModelConfig
from kvist.core.errors import ConfigError, DownloadError
from kvist.core.request_events import EventBatch
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.engine_launch import EngineChild
from kvist.runtime.engine_link import EngineLink
from kvist.runtime.free_memory import release_free_memory
from kvist.runtime.generation import TextGenerator
from kvist.runtime.generation_types import ModelInfo
from kvist.runtime.messages import StartPhase
from kvist.runtime.process_link import ProcessLink
from kvist.runtime.real_clock import RealClock, local_time
from kvist.runtime.sampling_defaults import read_sampling_defaults
from kvist.runtime.start_phases import StartPhases
from kvist.runtime.supervised_client import SupervisedEngineClient
from kvist.tokenization.chat_template import ChatTemplate
from kvist.tokenization.loading import load_chat_template, load_tokenizer
from kvist.tokenization.text_encoder import TextEncoder
from kvist.tokenization.tokenizer import Tokenizer
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A started engine with its text side."""

    client: SupervisedEngineClient
    generator: TextGenerator
    encoder: TextEncoder
    model: ModelInfo
    start_phases_s: dict[str, float]


async def start_engine(
    config: EngineConfig,
    *,
    engine_client: str,
    child: EngineChild | None = None,
    on_phase: Callable[[StartPhase], None] | None = None,
    listener: Callable[[EventBatch], None] | None = None,
) -> RunningEngine:
    """Fetch the model if need be, start the engine and load the tokenizer beside it.

    engine_client: "thread" or "process"; child: the process for the first engine, if it runs already. on_phase: told
    of the phases of this start and of later restarts. listener: handed all event batches, from the first on. Raises
    KvistError for whatever keeps it from starting.
    """
    phases = StartPhases(RealClock(), on_phase or (lambda phase: None))
    phases.begin("find model")
    resolved = await _with_found_models(config, phases)
    client = make_client(resolved, engine_client=engine_client, child=child)
    if on_phase is not None:
        client.add_phase_listener(on_phase)
    if listener is not None:
        client.add_listener(listener)
    phases.begin("start engine")
    # In one process the text side comes first: what the engine allocates then fills the room that vocabularies leave.
    starting = asyncio.create_task(client.start()) if engine_client == "process" else None
    try:
        tokenizer, chat_template, default_sampling = await asyncio.to_thread(_load_text_side, resolved.model)
        starting = starting or asyncio.create_task(client.start())
        await starting
    except BaseException:
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await client.close(drain_s=0.0)
        raise
    phases.end()
    model = _model_info(config, tokenizer, client.info, default_sampling)
    await asyncio.to_thread(release_free_memory)
    return RunningEngine(
        client=client,
        generator=TextGenerator(client, tokenizer, model, RealClock()),
        encoder=TextEncoder(
            tokenizer, chat_template, max_prompt_tokens=model.max_model_len, vocab_size=model.vocab_size
        ),
        model=model,
        start_phases_s={**phases.durations_s, **client.info.start_phases_s},
    )


async def _with_found_models(config: EngineConfig, phases: StartPhases) -> EngineConfig:
    """`config` with paths in the place of names. Fetches what is not there, and stops that when it is cancelled."""
    is_cancelled = threading.Event()

    def report_download(what: str, num_bytes: int, num_bytes_total: int | None) -> None:
        if is_cancelled.is_set():  # a thread cannot be cancelled, but this ends its download
            raise DownloadError(f"the download of {what} was cancelled")
        phases.progress(num_bytes, num_bytes_total or 0)

    async def find(model: str, revision: str | None) -> str:
        return str(await asyncio.to_thread(resolve_model, model, revision=revision, progress=report_download))

    speculation = config.speculation
    try:
        path = await find(config.model.model, config.model.revision)
        if speculation.speculative_model is not None:
            speculation = replace(speculation, speculative_model=await find(speculation.speculative_model, None))
    except asyncio.CancelledError:
        is_cancelled.set()
        raise
    return replace(config, model=replace(config.model, model=path), speculation=speculation)


def _load_text_side(config: ModelConfig) -> tuple[Tokenizer, ChatTemplate | None, dict[str, float]]:
    """And the model's own sampling defaults, if they are wanted. config: names the model by path.

    Keeps nothing of the checkpoint, whose vocabulary the tokenizer has as its own.
    """
    checkpoint = open_checkpoint(Path(config.model))
    tokenizer = load_tokenizer(checkpoint, path=config.tokenizer, cache_folder=cache_folder())
    template = load_chat_template(checkpoint, tokenizer, path=config.chat_template, now=local_time)
    is_auto = config.generation_config == "auto"
    return tokenizer, template, read_sampling_defaults(checkpoint) if is_auto else {}


def make_client(
    config: EngineConfig, *, engine_client: str, child: EngineChild | None = None
) -> SupervisedEngineClient:
    """A client, not yet started, whose engine runs in a thread or in a process: the first one in `child` if given."""
    clock = RealClock()
    if engine_client == "thread":

        def link() -> EngineLink:
            # Here, because a server whose engine is a process of its own starts in half the time without it, and
            # because what is imported then fills the room that a vocabulary left.
            from kvist.assembly.build_engine import build_engine
            from kvist.runtime.thread_link import ThreadLink

            return ThreadLink(lambda report: build_engine(config, report), clock)

        return SupervisedEngineClient(link, clock)
    if engine_client == "process":
        children = [child]
        return SupervisedEngineClient(
            lambda: ProcessLink(ENGINE_COMMAND, config, children.pop() if children else None), clock
        )
    raise ConfigError(f"engine_client is 'thread' or 'process', not {engine_client!r}")


def _model_info(
    config: EngineConfig, tokenizer: Tokenizer, info: EngineInfo, default_sampling: dict[str, float]
) -> ModelInfo:
    return ModelInfo(
        name=config.model.model,
        served_names=config.model.served_model_name or (config.model.model,),
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        seed=config.model.seed,
        default_sampling=default_sampling,
    )
