"""vLLM's worker on its CPU build, prefix cache on. Arguments: folder of the model, dtype, threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from worker import Generate, serve

CACHE_GB = 2


def load() -> tuple[str, Generate]:
    folder, dtype, num_threads = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process, so that its peak memory is seen
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHE_GB)
    os.environ["OMP_NUM_THREADS"] = num_threads  # it would take one
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{int(num_threads) - 1}"
    import vllm  # after the environment that it reads

    engine = vllm.LLM(model=folder, dtype=dtype, enable_prefix_caching=True, max_model_len=4096)

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = engine.generate(given, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return vllm.__version__, generate


if __name__ == "__main__":
    serve(load)
