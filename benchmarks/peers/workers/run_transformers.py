"""transformers' worker: `generate` on a static batch, KV cache as it comes. Arguments: folder, dtype, threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import transformers
from worker import Generate, serve


def load() -> tuple[str, Generate]:
    folder, dtype, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            outputs = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=num_output_tokens,
                min_new_tokens=num_output_tokens,
                do_sample=False,
            )
        return int(outputs.shape[0]) * (int(outputs.shape[1]) - int(tokens.shape[1]))

    return f"{transformers.__version__} (torch {torch.__version__})", generate


if __name__ == "__main__":
    serve(load)
