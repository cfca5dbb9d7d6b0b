"""The reproductions by name. Each module has `run(setting) -> ReproResult`."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean
from kvist.repro.result import ReproResult
from kvist.repro.setting import ReproSetting


@dataclass(frozen=True, slots=True)
class Repro:
    """Where it is, and the paper. is_simulated: it runs no model, so none is fetched."""

    module: str
    paper: str
    is_simulated: bool = False


REPROS: Mapping[str, Repro] = {
    "continuous-batching": Repro("kvist.repro.continuous_batching", "Orca (OSDI'22)"),
    "sarathi": Repro("kvist.repro.sarathi", "SARATHI (2023), Sarathi-Serve (OSDI'24)"),
    "fastgen": Repro("kvist.repro.fastgen", "DeepSpeed-FastGen (2024)"),
    "paged": Repro("kvist.repro.paged", "PagedAttention (vLLM, SOSP'23)"),
    "flash": Repro("kvist.repro.flash", "FlashAttention (NeurIPS'22)"),
    "kernels": Repro("kvist.repro.kernels", "TensorRT-LLM: fused operations, a plan ahead"),
    "speculation": Repro("kvist.repro.speculation", "speculative decoding by look-up in the prompt"),
    "quant": Repro("kvist.repro.quant", "weights and K/V in fewer bits"),
    "gqa": Repro("kvist.repro.gqa", "Grouped-query attention (EMNLP'23)"),
    "distserve": Repro("kvist.repro.distserve", "DistServe (OSDI'24), simulated", is_simulated=True),
    "mooncake": Repro("kvist.repro.mooncake", "Mooncake (FAST'25), simulated", is_simulated=True),
    "radix": Repro("kvist.repro.radix", "RadixAttention (SGLang, NeurIPS'24)"),
}


def find(name: str) -> Repro:
    """Raises ConfigError, with what there is."""
    if name not in REPROS:
        known = ", ".join([*REPROS, "all"])
        raise ConfigError(f"there is no reproduction {name!r}.{did_you_mean(name, REPROS)} There is {known}.")
    return REPROS[name]


def run(name: str, setting: ReproSetting) -> ReproResult:
    """Run the reproduction `name`."""
    # Here and by name: a list of reproductions needs none of this.
    repro = find(name)
    if repro.is_simulated:
        from kvist.planner.evaluation import GC_THRESHOLD

        gc.set_threshold(GC_THRESHOLD)
    result: ReproResult = import_module(repro.module).run(setting)
    return result
