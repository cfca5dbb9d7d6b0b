"""Prefix reuse where users have it: conversations whose history goes back as text, the answers the model's own.

The load: 24 sessions of 8 turns share a system prompt of 256 tokens; a user's turn has 24 to 96 tokens, an answer 48 to
128. Sessions arrive as a Poisson process at 0.7 of the measured capacity, with a pause of 2 s on average between turns.
The same prompts then run with the cache off: outputs must be equal.

The possible maximum is what a cache without bounds could have read: for each request the longest prefix that it shares
with any sequence that was complete, or another's prompt that was asked for, before it started.

Run: python -m benchmarks.chat_multi_turn
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from benchmarks.result_file import ROOT, take_no_options, write_result
from kvist.api.async_llm import AsyncLLM
from kvist.core.sampling_params import SamplingParams
from kvist.tokenization.tokenizer import Tokenizer

SEED = 20261130
NUM_SESSIONS, NUM_TURNS = 24, 8
SYSTEM_TOKENS, USER_TOKENS, ANSWER_TOKENS = 256, (24, 96), (48, 128)
MEAN_PAUSE_S, LOAD_FACTOR = 2.0, 0.7


@dataclass(slots=True)
class Turn:
    """One request and what came of it."""

    prompt: str
    num_answer_tokens: int
    started_s: float = 0.0
    finished_s: float = 0.0
    prompt_token_ids: list[int] = field(default_factory=list)
    answer_token_ids: list[int] = field(default_factory=list)
    answer: str = ""
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    arrival: float  # in units of the mean gap between sessions
    user_texts: tuple[str, ...]
    answer_lengths: tuple[int, ...]
    pauses_s: tuple[float, ...]


class WordSource:
    """Text of a wanted number of tokens, its words drawn from the licence's: no two pieces share a beginning."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self._words = sorted(set((ROOT / "LICENSE").read_text(encoding="utf-8").split()))
        self._tokenizer, self._rng = tokenizer, rng

    def text(self, num_tokens: int) -> str:
        words = " ".join(self._rng.choice(self._words) for _ in range(num_tokens))
        ids = self._tokenizer.encode(words, add_special_tokens=False)[:num_tokens]
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def make_sessions(source: WordSource, rng: random.Random) -> list[Session]:
    sessions, arrival = [], 0.0
    for _ in range(NUM_SESSIONS):
        arrival += rng.expovariate(1.0)
        sessions.append(
            Session(
                arrival=arrival,
                user_texts=tuple(source.text(rng.randint(*USER_TOKENS)) for _ in range(NUM_TURNS)),
                answer_lengths=tuple(rng.randint(*ANSWER_TOKENS) for _ in range(NUM_TURNS)),
                pauses_s=tuple(rng.expovariate(1 / MEAN_PAUSE_S) for _ in range(NUM_TURNS)),
            )
        )
    return sessions


async def run_session(llm: AsyncLLM, session: Session, system: str, delay_s: float, *, pauses: bool) -> list[Turn]:
    await asyncio.sleep(delay_s)
    history, turns = system, []
    for text, length, pause_s in zip(session.user_texts, session.answer_lengths, session.pauses_s, strict=True):
        history += f"\nUser: {text}\nAssistant:"
        turn = Turn(history, length)
        await ask(llm, turn)
        history += turn.answer
        turns.append(turn)
        if pauses:
            await asyncio.sleep(pause_s)
    return turns


async def ask(llm: AsyncLLM, turn: Turn) -> None:
    """Fill in `turn`."""
    turn.started_s = time.monotonic()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=turn.num_answer_tokens)
    async for output in llm.generate(turn.prompt, sampling):
        last = output
    turn.finished_s = time.monotonic()
    turn.answer, turn.answer_token_ids = last.outputs[0].text, list(last.outputs[0].token_ids)
    turn.prompt_token_ids, turn.num_cached_tokens = list(last.prompt_token_ids), last.num_cached_tokens


async def run_load(llm: AsyncLLM, sessions: list[Session], system: str, mean_gap_s: float) -> list[Turn]:
    """mean_gap_s 0: all sessions at once and without pauses, which measures capacity."""
    delays = [session.arrival * mean_gap_s for session in sessions]
    runs = [
        run_session(llm, session, system, delay, pauses=mean_gap_s > 0)
        for session, delay in zip(sessions, delays, strict=True)
    ]
    return [turn for turns in await asyncio.gather(*runs) for turn in turns]


async def replay(llm: AsyncLLM, turns: list[Turn]) -> list[Turn]:
    """The same prompts again, all at once."""
    copies = [Turn(turn.prompt, turn.num_answer_tokens) for turn in turns]
    await asyncio.gather(*(ask(llm, copy) for copy in copies))
    return copies


def possible_cached_tokens(turns: list[Turn]) -> int:
    """Tokens that an unbounded cache could have read; one token of each prompt is always computed."""
    total = 0
    for turn in turns:
        best = 0
        for other in turns:
            if other is turn or other.started_s >= turn.started_s:
                continue
            known = list(other.prompt_token_ids)
            if other.finished_s <= turn.started_s:
                known += other.answer_token_ids
            best = max(best, common_prefix(turn.prompt_token_ids, known))
        total += min(best, len(turn.prompt_token_ids) - 1)
    return total


def common_prefix(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def percentile_s(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure() -> None:
    rng = random.Random(SEED)
    async with AsyncLLM(enable_prefix_caching=True) as llm:
        source = WordSource(llm.get_tokenizer(), rng)
        system = source.text(SYSTEM_TOKENS)
        sessions = make_sessions(source, rng)
        start = time.monotonic()
        num_requests = len(await run_load(llm, sessions, source.text(SYSTEM_TOKENS), 0.0))
        capacity_rps = num_requests / (time.monotonic() - start)
        turns = await run_load(llm, sessions, system, NUM_TURNS / (LOAD_FACTOR * capacity_rps))
    async with AsyncLLM(enable_prefix_caching=False) as llm:
        start = time.monotonic()
        without = await replay(llm, turns)
        seconds_without = time.monotonic() - start
    asked = sum(len(turn.prompt_token_ids) for turn in turns)
    read = sum(turn.num_cached_tokens for turn in turns)
    possible = possible_cached_tokens(turns)
    equal = sum(a.answer_token_ids == b.answer_token_ids for a, b in zip(turns, without, strict=True))
    results: dict[str, object] = {
        "requests": num_requests,
        "prompt_tokens": asked,
        "cached_tokens": read,
        "possible_cached_tokens": possible,
        "hit_share": read / asked,
        "share_of_possible": read / possible,
        "equal_outputs": equal,
        "capacity_rps": capacity_rps,
        "latency_s_p50": percentile_s([turn.finished_s - turn.started_s for turn in turns], 0.5),
        "seconds_without_cache_all_at_once": seconds_without,
        "executor": llm.config.executor.executor,
    }
    for name, value in results.items():
        print(f"{name}: {value}")
    limits = "what is missed of the possible: answers whose text encodes to other tokens than were generated"
    print(write_result("chat_multi_turn", results, seed=SEED, num_warm_up=1, limits=limits))


if __name__ == "__main__":
    take_no_options(__doc__)
    asyncio.run(measure())
