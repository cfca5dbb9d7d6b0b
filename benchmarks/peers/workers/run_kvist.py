"""kvist's own worker: the engine as `kvist.LLM` runs it. Arguments: model, then options as NAME=VALUE."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from worker import Generate, serve

from kvist import LLM, SamplingParams, __version__


def load() -> tuple[str, Generate]:
    model, *options = sys.argv[1:]
    engine = LLM(model, **{name: _number_or_word(value) for name, _, value in (o.partition("=") for o in options)})

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return __version__, generate


def _number_or_word(value: str) -> int | str:
    return int(value) if value.isdigit() else value


if __name__ == "__main__":
    serve(load)
