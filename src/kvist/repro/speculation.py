"""Speculative decoding: drafts looked up in the request's own tokens, verified in one step; per load.

Three engines take turns: without drafts, with look-up as it is by default (drafting only where it pays), and with
look-up that always drafts. Loads: copying code, which repeats its prompt; plain chat; and questions on documents.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from kvist.assembly.speculation import make_speculator
from kvist.bench.load_run import LoadRun
from kvist.config.cache_folder import cache_folder
from kvist.config.speculation_config import SpeculationConfig
from kvist.repro.measured_engine import MeasuredEngine, at_once, by_cpu_time, spread_of_ratio
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import local_time
from kvist.tokenization.loading import load_chat_template, load_tokenizer
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder
from kvist.weights.checkpoint import open_checkpoint
from kvist.workload.trace_record import TextPart, TraceRecord

ENGINES: Mapping[str, SpeculationConfig | None] = {
    "none": None,
    "adaptive": SpeculationConfig(speculative_method="ngram"),
    "always": SpeculationConfig(speculative_method="ngram", speculative_adaptive=False),
}
CODE_FILES = ("core/clock.py", "core/suggest.py", "scheduler/budget.py", "core/errors.py")
CODE_CHARACTERS, QUICK_CODE_CHARACTERS = 1500, 500
QUESTIONS = (
    "Tell me a story about a lighthouse keeper.",
    "How do plants make sugar from light?",
    "Give me three ideas for a birthday party.",
    "Why is the sky blue, and why are sunsets red?",
)
POOL_TOKENS = 16_384
OUTPUT_TOKENS, QUICK_OUTPUT_TOKENS = 120, 40
NUM_QUESTIONS_ON_DOCUMENTS = 4


class FixedPrompts:
    """Prompts that are tokens already, by index."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._prompts = prompts

    def prompt(self, record: TraceRecord, answers: Callable[[int], Sequence[int]]) -> Sequence[int]:
        return self._prompts[record.index]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLoad:
    """Prompts at once, with `num_tokens` of answer each. published: said of such loads."""

    name: str
    about: str
    prompts: Sequence[Sequence[int]]
    num_tokens: int
    published: str | None = None

    def records(self) -> list[TraceRecord]:
        return [
            TraceRecord(
                index=i, arrival_s=0.0, prompt=(TextPart("", 0, len(prompt)),), num_output_tokens=self.num_tokens
            )
            for i, prompt in enumerate(self.prompts)
        ]


def run(setting: ReproSetting) -> ReproResult:
    with MeasuredEngine(setting, num_kv_tokens=POOL_TOKENS) as engine:
        loads = _loads(setting, engine)
        runs = {load.name: _play(engine, setting, load) for load in loads}
    rows = [row for load in loads for row in _rows(load, runs[load.name])]
    return engine.result(
        "speculation",
        "Speculative decoding: drafts from the prompt",
        setup=(
            "Greedy; drafts of up to 6 tokens looked up in the request's own tokens. Speed: output tokens per second"
            " while all streams run. Baseline: no drafts."
        ),
        rows=rows,
        plots=[
            BarPlot(
                title="Decode speed",
                unit="output tokens/s",
                groups=list(runs),
                values={kind: [_median_speed(each[kind]) for each in runs.values()] for kind in ENGINES},
            )
        ],
        notes=[NOTE],
    )


def _loads(setting: ReproSetting, engine: MeasuredEngine) -> list[SpeculationLoad]:
    chat = _chat_encoder(setting, engine)
    num_tokens = QUICK_OUTPUT_TOKENS if setting.is_quick else OUTPUT_TOKENS
    length = QUICK_CODE_CHARACTERS if setting.is_quick else CODE_CHARACTERS
    codes = [files("kvist").joinpath(name).read_text(encoding="utf-8")[:length] for name in CODE_FILES]
    copying = [chat(f"Repeat this Python code exactly, word for word:\n\n```python\n{code}\n```") for code in codes]
    chatting = [chat(question) for question in QUESTIONS]
    one, four = "one stream", "four streams"
    loads = [
        SpeculationLoad(
            name="copying code, 1",
            about=f"{one}, the answer repeats the prompt",
            prompts=copying[:1],
            num_tokens=num_tokens,
            published="2-4x by look-up on input-grounded tasks (Saxena 2023)",
        ),
        SpeculationLoad(
            name="chat, 1",
            about=f"{one}, a plain question",
            prompts=chatting[:1],
            num_tokens=num_tokens,
            published="2-3x with a draft model (Leviathan 2023)",
        ),
        SpeculationLoad(
            name="copying code, 4", about=f"{four}, answers repeat prompts", prompts=copying, num_tokens=num_tokens
        ),
        SpeculationLoad(name="chat, 4", about=f"{four}, plain questions", prompts=chatting, num_tokens=num_tokens),
    ]
    if not setting.is_quick:
        records = setting.load("retrieval", {}).records(capacity_per_s=1.0)[:NUM_QUESTIONS_ON_DOCUMENTS]
        documents = [engine.texts.prompt(record, lambda index: ()) for record in records]
        loads.append(
            SpeculationLoad(
                name="retrieval, 4",
                about=f"{four}, two documents each, as in the frozen load",
                prompts=documents,
                num_tokens=num_tokens,
            )
        )
    return loads


def _chat_encoder(setting: ReproSetting, engine: MeasuredEngine) -> Callable[[str], list[int]]:
    """Encodes a user's message with the model's chat template, or plainly if it has none."""
    checkpoint = open_checkpoint(setting.model_path)
    tokenizer = load_tokenizer(checkpoint, path=setting.model.tokenizer, cache_folder=cache_folder())
    template = load_chat_template(checkpoint, tokenizer, path=setting.model.chat_template, now=local_time)
    if template is None:
        return tokenizer.encode
    encoder = TextEncoder(
        tokenizer, template, max_prompt_tokens=engine.model.max_model_len, vocab_size=engine.model.spec.vocab_size
    )
    return lambda text: encoder.encode_messages([{"role": "user", "content": text}], ChatOptions())


def _play(engine: MeasuredEngine, setting: ReproSetting, load: SpeculationLoad) -> dict[str, list[LoadRun]]:
    """The first round is for learning what a draft costs and is not counted, except in a quick run."""
    runs: dict[str, list[LoadRun]] = {kind: [] for kind in ENGINES}
    speculators = {kind: None if config is None else make_speculator(config) for kind, config in ENGINES.items()}
    num_warm_up = 0 if setting.is_quick else 1
    for repeat in range(setting.repeats + num_warm_up):
        for kind, speculator in speculators.items():
            played = engine.play(
                f"{load.name}, drafts: {kind}",
                at_once(load.records()),
                speculator=speculator,
                kv_cache=engine.model.new_cache(enable_prefix_caching=False),
                prompts=FixedPrompts(load.prompts),
            )
            if repeat >= num_warm_up:
                runs[kind].append(played)
    return runs


def decode_speed(run: LoadRun) -> float:
    """Output tokens per second while all requests decode: from the last one's first token to the first one's end.

    What comes after says how the streams end, not how fast so many of them are: those that accept drafts end early.
    """
    start_s = max(request.token_times_s[0] for request in run.requests)
    end_s = min(request.token_times_s[-1] for request in run.requests)
    num_tokens = sum(start_s < time_s <= end_s for request in run.requests for time_s in request.token_times_s)
    return num_tokens / (end_s - start_s)


def time_to_all_s(run: LoadRun) -> float:
    """Seconds from the first token of the run to its last."""
    times = [time_s for request in run.requests for time_s in request.token_times_s]
    return max(times) - min(times)


def _median_speed(runs: Sequence[LoadRun]) -> float:
    return statistics.median(map(decode_speed, runs))


def _rows(load: SpeculationLoad, runs: Mapping[str, Sequence[LoadRun]]) -> list[ReproRow]:
    plain = [decode_speed(run) for run in runs["none"]]
    rows = []
    for kind in ("adaptive", "always"):
        speeds = [decode_speed(run) for run in runs[kind]]
        drafted = sum(request.num_draft_tokens for run in runs[kind] for request in run.requests)
        accepted = sum(request.num_accepted_tokens for run in runs[kind] for request in run.requests)
        until_all = ""
        if len(load.prompts) > 1:
            times_s = [statistics.median(map(time_to_all_s, runs[each])) for each in ("none", kind)]
            until_all = f"{times_s[0] / times_s[1]:.2f}x by the time until the last stream ends; "
        share = f"{accepted / drafted:.0%} of {drafted:,} drafted tokens accepted" if drafted else "nothing was drafted"
        rows.append(
            ReproRow(
                name=f"{load.name}: speed, drafting {'where it pays' if kind == 'adaptive' else 'always'}",
                unit="output tokens/s",
                measured=statistics.median(speeds),
                baseline=statistics.median(plain),
                spread=spread_of_ratio(speeds, plain),
                published=load.published if kind == "adaptive" else None,
                setup=load.about,
                equal_output=all(run.outputs == runs["none"][0].outputs for run in runs[kind]),
                why=f"{share}; {until_all}{by_cpu_time(runs[kind], runs['none'])}",
            )
        )
    return rows


NOTE = (
    "A draft costs little where a step is bound by reading the weights, as on a GPU with few streams; here one "
    "stream's step is near that bound and sixteen streams' step is not, so drafts pay least where the batch is large. "
    "There is no draft model for the default model in the catalogue; `--speculative-model` takes any with the same "
    "vocabulary. The brief says nothing of speculation."
)
