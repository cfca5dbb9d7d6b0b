"""Cost of text on the default model's vocabulary: load the tokenizer, encode, render a chat, detokenize a token.

CPU time; the library encodes on one thread for one text. Run: python -m benchmarks.text
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.result_file import cpu_time_s, spread, take_no_options, write_result
from kvist.config.model_config import DEFAULT_MODEL
from kvist.tokenization.loading import load_chat_template, load_tokenizer
from kvist.tokenization.output_text import OutputText
from kvist.tokenization.stop_strings import StopStrings
from kvist.tokenization.text_encoder import ChatOptions, TextEncoder
from kvist.tokenization.tokenizer import Tokenizer
from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.fetch import resolve_model

SEED = 20261130
NUM_WARM_UP = 1
NUM_REPEATS = 7
TEXT_FILES = ("README.md", "docs/architecture.md", "docs/usage.md", "docs/text.md")
SCRIPTS = "你好世界这是一个测试 Привет мир 😀👩‍👩‍👧 हिन्दी 日本語 "
STOPS = ("</s>", "\nUser:", "Assistant:", "\n\n\n\n")  # common beginnings, but none occurs in the text


def repeat(measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(NUM_WARM_UP + NUM_REPEATS)][NUM_WARM_UP:]


def detokenize_us(tokenizer: Tokenizer, token_ids: Sequence[int], stop: StopStrings | None) -> float:
    """CPU time a token, one token at a time as while streaming."""

    def stream() -> None:
        output = OutputText(tokenizer, stop=stop)
        for token_id in token_ids:
            output.append((token_id,))
        output.finish()

    return cpu_time_s(stream) / len(token_ids) * 1e6


def main() -> int:
    checkpoint = open_checkpoint(resolve_model(DEFAULT_MODEL))
    tokenizer = load_tokenizer(checkpoint)
    template = load_chat_template(checkpoint, tokenizer, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    encoder = TextEncoder(tokenizer, template, max_prompt_tokens=10**6, vocab_size=tokenizer.vocab_size)
    root = Path(__file__).parents[1]
    english = "\n".join((root / name).read_text(encoding="utf-8") for name in TEXT_FILES)
    mixed = "".join(random.Random(SEED).choices(SCRIPTS.split(" "), k=4000))
    megabyte = english * (1_000_000 // len(english) + 1)
    chat = [{"role": "user", "content": "Hello, how are you?"}]
    stop = StopStrings(STOPS)
    english_ids, mixed_ids = tokenizer.encode(english), tokenizer.encode(mixed)

    def one_chat_us() -> float:
        return cpu_time_s(lambda: [encoder.encode_messages(chat, ChatOptions()) for _ in range(100)]) * 1e4

    results: dict[str, object] = {
        "load_tokenizer": spread(repeat(lambda: cpu_time_s(lambda: load_tokenizer(checkpoint)) * 1e3), "ms"),
        "encode_a_million_characters": spread(repeat(lambda: cpu_time_s(lambda: tokenizer.encode(megabyte))), "s"),
        "render_and_encode_a_short_chat": spread(repeat(one_chat_us), "us"),
        "detokenize_english": spread(repeat(lambda: detokenize_us(tokenizer, english_ids, None)), "us a token"),
        "detokenize_many_scripts": spread(repeat(lambda: detokenize_us(tokenizer, mixed_ids, None)), "us a token"),
        "with_four_stop_strings": spread(repeat(lambda: detokenize_us(tokenizer, english_ids, stop)), "us a token"),
    }
    path = write_result(
        "text",
        results,
        seed=SEED,
        num_warm_up=NUM_WARM_UP,
        limits="loading: hash tables of the library; many scripts: parts of characters go through a decoder; "
        "stop strings: one dictionary look-up a character once a first character was seen",
    )
    print(path.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    take_no_options(__doc__)
    sys.exit(main())
