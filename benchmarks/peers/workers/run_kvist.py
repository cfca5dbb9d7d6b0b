"""kvist as `kvist.LLM` runs it. Arguments: model, then flags of `kvist serve` and their values."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from worker import Generate, serve

from kvist import LLM, SamplingParams, __version__


def load() -> tuple[str, Generate]:
    model, *words = sys.argv[1:]
    options = {flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    engine = LLM(model, **{name: int(value) if value.isdigit() else value for name, value in options.items()})

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return __version__, generate


if __name__ == "__main__":
    serve(load)
