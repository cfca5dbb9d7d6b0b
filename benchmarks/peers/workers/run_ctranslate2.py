"""CTranslate2's worker. Its batches are static and there is no prefix cache across calls: all prompts of a call run
together, and what they share is given as its static prompt, which it computes once.

Arguments: folder of the model, threads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
from worker import Generate, serve


def load() -> tuple[str, Generate]:
    folder, num_threads = sys.argv[1:]
    vocabulary = json.loads((Path(folder) / "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(folder, device="cpu", compute_type="auto", intra_threads=int(num_threads))

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        shared = _num_shared(prompts)
        results = generator.generate_batch(
            [[vocabulary[token] for token in prompt[shared:]] for prompt in prompts],
            static_prompt=[vocabulary[token] for token in prompts[0][:shared]] or None,
            cache_static_prompt=False,
            include_prompt_in_result=False,
            max_length=num_output_tokens,
            min_length=num_output_tokens,
            sampling_topk=1,
        )
        return sum(len(result.sequences_ids[0]) for result in results)

    return ctranslate2.__version__, generate


def _num_shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that several prompts begin with together."""
    if len(prompts) == 1:
        return 0
    return next((i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1), 0)


if __name__ == "__main__":
    serve(load)
