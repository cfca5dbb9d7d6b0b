"""A fixed grid of step time predictions over devices, models, splits and engines: what a change to the model moves."""

from __future__ import annotations

from itertools import product

from kvist.costmodel.calibrated_model import calibrated_model
from kvist.costmodel.device_catalogue import find_device
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.number_format import find_format
from kvist.costmodel.roofline import Placement
from kvist.costmodel.step_work import StepWork

DEVICES = ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM", "B200-180GB-SXM", "L40S", "RTX-4090")
MODELS = (("llama-3.1-8b", 1), ("llama-3.1-70b", 4), ("mixtral-8x7b", 2), ("qwen3-32b", 2))
ENGINES = ("vllm-2025", "vllm-0.15", "trtllm-2025", "vllm-early-2024")
FORMATS = ("bf16", "fp8", "int4")
STEPS = {
    "decode 1 x 1024": StepWork.of([(1, 1024)], num_sampled=1),
    "decode 64 x 2048": StepWork.of([(1, 2048)] * 64, num_sampled=64),
    "prefill 2048": StepWork.of([(2048, 0)], num_sampled=1),
    "mixed 512 + 32 x 1024": StepWork.of([*[(1, 1024)] * 32, (512, 1024)], num_sampled=33),
}


def predict_grid() -> dict[str, float]:
    """Milliseconds by name."""
    grid: dict[str, float] = {}
    for device, (model, ranks), engine, number_format in product(DEVICES, MODELS, ENGINES, FORMATS):
        placement = Placement(
            model=find_model_spec(model),
            device=find_device(device),
            number_format=find_format(number_format),
            tensor_parallel_size=ranks,
        )
        times = calibrated_model(placement, generation=engine, model_name=model)
        for name, work in STEPS.items():
            grid[f"{device} {model} x{ranks} {engine} {number_format}: {name}"] = round(1e3 * times.predict_s(work), 4)
    return grid
