"""Continue one prompt and print the text as it comes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

from kvist.api.async_llm import AsyncLLM
from kvist.api.outputs import RequestOutput
from kvist.cli.local_engine import make_local_llm, sampling_for
from kvist.cli.model_source import add_config_file_argument
from kvist.cli.sampling_arguments import add_sampling_arguments, given_sampling
from kvist.cli.start_display import start_display
from kvist.config.arguments import add_config_arguments
from kvist.config.load import ENGINE_SECTIONS
from kvist.core.errors import EngineUnavailableError, InvalidRequestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt, the form of the answer, sampling and engine options."""
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads it from standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end instead of text as it comes")
    add_config_file_argument(parser)
    add_sampling_arguments(parser, max_tokens=128)
    add_config_arguments(parser, ENGINE_SECTIONS)


def run(arguments: argparse.Namespace) -> int:
    prompt = _read_input() if arguments.prompt == "-" else arguments.prompt
    llm = make_local_llm(arguments)
    output = asyncio.run(_complete(llm, prompt, given_sampling(arguments), streams=not arguments.json))
    if output.outputs[0].finish_reason == "error":
        raise EngineUnavailableError("the engine failed while it was answering")
    print(json.dumps(_as_json(llm, output), ensure_ascii=False) if arguments.json else "")
    return 0


def _read_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not text in {error.encoding}: {error.reason}") from error


async def _complete(llm: AsyncLLM, prompt: str, fields: dict[str, Any], *, streams: bool) -> RequestOutput:
    """Generate to the end; print the text as it comes if `streams`."""
    num_printed = 0
    with start_display() as display:
        await llm.start(display.show)
    async with llm, aclosing(llm.generate(prompt, sampling_for(llm, fields))) as outputs:
        async for output in outputs:
            text = output.outputs[0].text
            if streams and len(text) > num_printed:
                print(text[num_printed:], end="", flush=True)
                num_printed = len(text)
    return output


def _as_json(llm: AsyncLLM, output: RequestOutput) -> dict[str, Any]:
    sample = output.outputs[0]
    return {
        "model": llm.config.model.model,
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(sample.token_ids),
            "cached_tokens": output.num_cached_tokens,
        },
        "time_to_first_token_s": output.metrics.time_to_first_token_s,
        "end_to_end_latency_s": output.metrics.end_to_end_latency_s,
    }
