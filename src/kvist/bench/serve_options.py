"""What `kvist bench serve` is asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvist.bench.load_source import Requests
from kvist.bench.prompt_writer import PromptForm
from kvist.metrics.benchmark_result import Statistics
from kvist.metrics.service_level import ServiceLevels


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """model, tokenizer, seed, temperature, form: None for what server and load say. levels: None for the load's own.

    capacity_per_s: None to measure it where the load needs it. num_unloaded: prompt lengths whose unloaded latency is
    measured where a target is a multiple of it. max_rate: search for the largest rate that keeps `attainment`, to
    within `rate_tolerance`. profile: have the server trace its steps meanwhile.
    """

    base_url: str
    path: str
    requests: Requests
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    tokenizer: str | None = None
    form: PromptForm | None = None
    levels: ServiceLevels | None = None
    seed: int | None = None
    temperature: float | None = None
    ignore_eos: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    max_concurrency: int | None = None
    capacity_per_s: float | None = None
    num_warmups: int = 2
    num_unloaded: int = 6
    skip_too_long: bool = False
    timeout_s: float = 600.0
    ready_timeout_s: float = 60.0
    max_rate: bool = False
    attainment: float = 0.9
    rate_tolerance: float = 0.1
    statistics: Statistics = field(default_factory=Statistics)
    detailed: bool = False
    label: str | None = None
    profile: bool = False

    @property
    def is_chat(self) -> bool:
        return self.path.endswith("/chat/completions")
