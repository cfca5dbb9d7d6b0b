"""How a reproduction is to be run: on which model, how large, how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import ExecutorConfig
from kvist.config.model_config import ModelConfig
from kvist.workload.load_file import Load, frozen_loads
from kvist.workload.shortening import shortened

USUAL_SHARE = 0.15  # of a load's requests: what keeps most reproductions, repeated, to a few minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproSetting:
    """scale: share of each frozen load's requests; None: what each reproduction usually takes, a few minutes' worth.
    is_quick: loads as small as each reproduction says instead.

    say: told what is being measured.
    """

    model_path: Path
    model: ModelConfig
    cache: CacheConfig
    executor: ExecutorConfig
    is_quick: bool
    scale: float | None
    repeats: int
    say: Callable[[str], None]

    @property
    def size(self) -> str:
        """In a word or two, for the table."""
        if self.is_quick:
            return "quick"
        if self.scale is None:
            return "usual, requests as stated"
        return "full" if self.scale == 1.0 else f"{self.scale:.0%} of each load's requests"

    def load(self, name: str, quick: Mapping[str, Any], *, least: int = 1, usual: float = USUAL_SHARE) -> Load:
        """A frozen load at this size. quick: fields of its shape that differ in a quick run. Any: their values.

        least: requests (sessions, roots) that a share of the load has at least: fewer would not show the effect.
        usual: the share without a `scale`.
        """
        load = frozen_loads().load(name)
        if self.is_quick:
            return replace(load, shape=replace(load.shape, **quick))
        return shortened(load, usual if self.scale is None else self.scale, least=least)
