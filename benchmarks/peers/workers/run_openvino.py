"""OpenVINO GenAI's worker: continuous batching with the prefix cache on. Arguments: folder of the model, threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino_genai as genai
from worker import Generate, serve

MAX_NUM_BATCHED_TOKENS = 4096  # its default of 256 is slower on every load here
CACHE_GB = 2


def load() -> tuple[str, Generate]:
    folder, num_threads = sys.argv[1:]
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
    scheduler.cache_size = CACHE_GB
    properties = {"INFERENCE_NUM_THREADS": int(num_threads)}
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)

    def generate(prompts: Sequence[Sequence[int]], num_output_tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_output_tokens
        config.ignore_eos = True
        config.do_sample = False
        tensors = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(tensors, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)

    return genai.__version__, generate


if __name__ == "__main__":
    serve(load)
