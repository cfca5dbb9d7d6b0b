"""Decode speed with and without drafts, on answers that repeat their prompt and on plain chat.

Three engines in one process take turns on the same greedy requests: without drafts, with look-up as it is by default
(drafting only where it pays), and with look-up that always drafts. Speed is output tokens after the first one per
second, from the first token of a run to its end. Outputs must be equal.

Run: python -m benchmarks.speculation
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.result_file import ROOT, spread, take_no_options, write_result
from kvist.api.async_llm import AsyncLLM
from kvist.core.sampling_params import SamplingParams
from kvist.tokenization.text_encoder import ChatOptions

NUM_REPEATS = 4
LIMITS = (
    "reading the weights: with one request a draft costs about 0.15 of a plain step, with 16 requests 0.3 to 0.4 of a "
    "token; and how often the model repeats its prompt"
)
ENGINES: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"speculative_method": "ngram"},
    "ngram_always": {"speculative_method": "ngram", "speculative_adaptive": False},
}
CODE_FILES = ("core/clock.py", "core/suggest.py", "scheduler/budget.py", "core/errors.py")
QUESTIONS = (
    "Tell me a story about a lighthouse keeper.",
    "How do plants make sugar from light?",
    "Give me three ideas for a birthday party.",
    "Why is the sky blue, and why are sunsets red?",
)


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    prompts: list[list[int]]
    num_tokens: int


@dataclass(slots=True)
class Run:
    tokens_per_s: float = 0.0
    outputs: list[tuple[int, ...]] = field(default_factory=list)


def make_loads(llm: AsyncLLM) -> list[Load]:
    def chat(text: str) -> list[int]:
        return llm.engine.encoder.encode_messages([{"role": "user", "content": text}], ChatOptions())

    codes = [(ROOT / "src" / "kvist" / name).read_text(encoding="utf-8")[:1500] for name in CODE_FILES]
    copying = [chat(f"Repeat this Python code exactly, word for word:\n\n```python\n{code}\n```") for code in codes]
    chatting = [chat(question) for question in QUESTIONS]
    return [
        Load("copying_code_1", copying[:1], 80),
        Load("chat_1", chatting[:1], 80),
        Load("copying_code_4", copying, 40),
        Load("chat_4", chatting, 40),
    ]


async def run_load(llm: AsyncLLM, load: Load, serial: str) -> Run:
    """All prompts of the load at once."""
    firsts: list[float] = []
    outputs: dict[int, tuple[int, ...]] = {}

    async def one(index: int, prompt: list[int]) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=load.num_tokens, ignore_eos=True)
        async for output in llm.generate({"prompt_token_ids": prompt}, sampling, request_id=f"{serial}-{index}"):
            if index not in outputs:
                firsts.append(time.perf_counter())
            outputs[index] = tuple(output.outputs[0].token_ids)

    await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(load.prompts)))
    elapsed_s = time.perf_counter() - min(firsts)
    num_tokens = sum(map(len, outputs.values())) - len(outputs)
    return Run(num_tokens / elapsed_s, [outputs[index] for index in range(len(load.prompts))])


async def measure() -> dict[str, object]:
    llms = {name: AsyncLLM(engine_client="thread", **options) for name, options in ENGINES.items()}
    for llm in llms.values():
        await llm.start()
    results: dict[str, object] = {}
    try:
        for load in make_loads(llms["none"]):
            results[load.name] = await compare(llms, load)
    finally:
        for llm in llms.values():
            await llm.shutdown()
    return results


async def compare(llms: dict[str, AsyncLLM], load: Load) -> dict[str, object]:
    runs: dict[str, list[Run]] = {name: [] for name in llms}
    drafted = {name: llm.recorder.num_draft_tokens for name, llm in llms.items()}
    accepted = {name: llm.recorder.num_accepted_tokens for name, llm in llms.items()}
    for repeat in range(NUM_REPEATS + 1):
        for name, llm in llms.items():
            run = await run_load(llm, load, f"{load.name}-{repeat}")
            if repeat:  # the first is for warming up, and for learning what a draft costs
                runs[name].append(run)
    expected = runs["none"][0].outputs
    assert all(run.outputs == expected for each in runs.values() for run in each), "drafts changed an output"
    speeds = {name: [run.tokens_per_s for run in each] for name, each in runs.items()}
    return {
        **{name: spread(values, "output tokens/s after the first") for name, values in speeds.items()},
        **{
            # Of the best runs: what else the machine does only ever takes time away.
            f"{name}_ratio": max(values) / max(speeds["none"])
            for name, values in speeds.items()
            if name != "none"
        },
        "drafted": {name: llm.recorder.num_draft_tokens - drafted[name] for name, llm in llms.items()},
        "accepted": {name: llm.recorder.num_accepted_tokens - accepted[name] for name, llm in llms.items()},
    }


if __name__ == "__main__":
    take_no_options(__doc__)
    print(write_result("speculation", asyncio.run(measure()), seed=None, num_warm_up=1, limits=LIMITS))
