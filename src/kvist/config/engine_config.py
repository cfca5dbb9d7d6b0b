"""All configuration of one engine; what a child process is handed."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.config.cache_config import CacheConfig
from kvist.config.model_config import ModelConfig
from kvist.config.option import option
from kvist.config.scheduler_config import SchedulerConfig
from kvist.config.speculation_config import SpeculationConfig
from kvist.config.trace_config import TraceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    executor: str = option(
        "auto",
        help="what computes the steps: compiled kernels, or plain NumPy as the reference; auto: native where it can",
        choices=("auto", "native", "reference"),
    )
    num_threads: int | None = option(
        None, help="threads; default: the cores that the cgroup grants", aliases=("-t", "--threads"), low=1, high=1024
    )
    isa: str = option(
        "auto",
        help="instruction set of the native kernels, to compare them; auto: the widest that passes its self-test",
    )
    attention_dtype: str = option(
        "float32",
        help="numbers that attention multiplies; int8: exact integer products over --kv-cache-dtype int8, native only",
        choices=("float32", "int8"),
    )
    weight_cache_bytes: int = option(
        8 << 30, help="bytes of packed weights kept on disk for later starts; 0: keep none", low=0, unit="bytes"
    )
    verify: bool = option(False, help="compare the checksums of kept packed weights, which reads them all")
    logprobs_mode: str = option(
        "raw_logprobs",
        help="log-probabilities before or after penalties, temperature and top-k/p",
        choices=("raw_logprobs", "processed_logprobs"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
