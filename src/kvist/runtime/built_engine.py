"""What assembly hands to whoever runs an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvist.engine.engine_core import EngineCore
from kvist.runtime.engine_client import EngineInfo
from kvist.runtime.messages import StartPhase
from kvist.runtime.step_tracer import StepTracer

ReportPhase = Callable[[StartPhase], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """A core ready to step, and what to tell clients of it. `close` frees weights, KV bytes and threads."""

    core: EngineCore
    info: EngineInfo
    close: Callable[[], None]
    tracer: StepTracer | None = None
