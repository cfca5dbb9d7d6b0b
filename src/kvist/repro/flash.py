"""FlashAttention (NeurIPS'22): exact attention in tiles against one that materializes its scores, layer against layer.

Both compute the same causal attention of the default model's heads with the same float lanes on the same threads. The
baseline skips what no query sees, as the tiled one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvist.core.clock import Clock
from kvist.core.errors import ConfigError
from kvist.execution.choice import choose_executor
from kvist.execution.native import _native
from kvist.execution.threads import granted_cores
from kvist.models.registry import read_model
from kvist.repro.attention_pair import (
    Heads,
    NaiveAttention,
    TiledAttention,
    Tokens,
    bytes_of_scores_moved,
    exact_attention,
)
from kvist.repro.result import BarPlot, ReproResult
from kvist.repro.row import ReproRow
from kvist.repro.setting import ReproSetting
from kvist.runtime.real_clock import RealClock
from kvist.weights.checkpoint import open_checkpoint

LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384), (512, 1024)
MOST_SCORE_BYTES = 4 << 30  # longer prompts are left out: the baseline's memory is the point, not the machine's end
CHECKED_TOKENS = 512
ROUNDS, QUICK_ROUNDS = 5, 2
MATRIX_UNIT = "amx"


@dataclass(frozen=True, slots=True)
class Pair:
    """Best times in seconds, workspaces in bytes. matrix_unit_s: the engine's default kernels, if they are others."""

    naive_s: float
    tiled_s: float
    naive_bytes: int
    tiled_bytes: int
    moved_bytes: int
    matrix_unit_s: float | None


def run(setting: ReproSetting) -> ReproResult:
    spec = read_model(open_checkpoint(setting.model_path)).spec
    choose_executor("native", spec)
    heads = Heads(spec.num_q_heads, spec.num_kv_heads, spec.head_dim)
    isas = [isa for isa in _native.isas() if not isa.startswith(MATRIX_UNIT)]
    if not isas:
        raise ConfigError("no kernels in float lanes are compiled here")
    pool = _native.ThreadPool(setting.executor.num_threads or granted_cores())
    bench = _Bench(heads, isas[0], pool, RealClock(), QUICK_ROUNDS if setting.is_quick else ROUNDS)
    lengths = QUICK_LENGTHS if setting.is_quick else LENGTHS
    prefills: dict[int, Pair] = {}
    decodes: dict[int, Pair] = {}
    left_out = []
    for length in lengths:
        setting.say(f"{length} tokens")
        if heads.num_q * length * length * 4 <= MOST_SCORE_BYTES:
            prefills[length] = bench.pair(num_tokens=length, num_queries=length)
        else:
            left_out.append(length)
        decodes[length] = bench.pair(num_tokens=length, num_queries=1)
    errors = bench.errors()
    rows = [row for length, pair in prefills.items() for row in _prefill_rows(length, pair, is_first=length == 1024)]
    rows += [_decode_row(length, pair) for length, pair in decodes.items()]
    rows.append(_error_row(errors))
    return ReproResult(
        name="flash",
        title="FlashAttention: exact attention in tiles",
        setup=(
            f"One layer, {heads.num_q} query heads and {heads.num_kv} of K and V of {heads.head_dim}, float32, causal,"
            f" {isas[0]} kernels on {pool.num_threads} threads; best of {bench.rounds} rounds in turn. Baseline: scores"
            " of all heads written out, softmax over them, their product with V; in C++ on the same lanes."
        ),
        executor=f"native {isas[0]} {pool.num_threads}, attention alone",
        size=setting.size,
        repeats=1,
        rows=rows,
        plots=_plots(prefills),
        notes=[NOTE, *([LEFT_OUT.format(", ".join(map(str, left_out)))] if left_out else [])],
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    heads: Heads
    isa: str
    pool: _native.ThreadPool
    clock: Clock
    rounds: int

    def pair(self, *, num_tokens: int, num_queries: int) -> Pair:
        tokens = Tokens.random(self.heads, num_tokens=num_tokens, num_queries=num_queries)
        naive = self._naive(num_tokens, num_queries, tokens)
        tiled = self._tiled(self.isa, "float32", num_tokens, num_queries, tokens)
        best_isa = _native.isas()[0]
        unit = None if best_isa == self.isa else self._tiled(best_isa, "auto", num_tokens, num_queries, tokens)
        times: dict[str, list[float]] = {"naive": [], "tiled": [], "unit": []}
        for _ in range(self.rounds):
            times["naive"].append(naive.run(tokens)[1])
            times["tiled"].append(tiled.run(num_queries)[1])
            if unit is not None:
                times["unit"].append(unit.run(num_queries)[1])
        return Pair(
            naive_s=min(times["naive"]),
            tiled_s=min(times["tiled"]),
            naive_bytes=naive.workspace_bytes,
            tiled_bytes=tiled.workspace_bytes,
            moved_bytes=bytes_of_scores_moved(self.heads, num_tokens=num_tokens, num_queries=num_queries),
            matrix_unit_s=min(times["unit"]) if unit is not None else None,
        )

    def errors(self) -> dict[str, float]:
        """Largest difference from float64, over a prompt."""
        size = CHECKED_TOKENS
        tokens = Tokens.random(self.heads, num_tokens=size, num_queries=size)
        exact = exact_attention(tokens, self.heads)
        tiled = self._tiled(self.isa, "float32", size, size, tokens)
        return {
            "naive": float(np.abs(self._naive(size, size, tokens).run(tokens)[0] - exact).max()),
            "tiled": float(np.abs(tiled.run(size)[0] - exact).max()),
        }

    def _naive(self, num_tokens: int, num_queries: int, tokens: Tokens) -> NaiveAttention:
        naive = NaiveAttention(
            self.heads, isa=self.isa, pool=self.pool, clock=self.clock, num_tokens=num_tokens, num_queries=num_queries
        )
        naive.fill(tokens)
        return naive

    def _tiled(self, isa: str, dtype: str, num_tokens: int, num_queries: int, tokens: Tokens) -> TiledAttention:
        tiled = TiledAttention(
            self.heads, isa=isa, dtype=dtype, pool=self.pool, num_tokens=num_tokens, num_queries=num_queries
        )
        tiled.fill(tokens)
        return tiled


def _prefill_rows(length: int, pair: Pair, *, is_first: bool) -> list[ReproRow]:
    unit = pair.matrix_unit_s
    faster = f"the engine's default kernels take {1e3 * unit:.2f} ms, {pair.naive_s / unit:.1f}x" if unit else ""
    return [
        ReproRow(
            name=f"prefill of {length}: speed",
            unit="prompts/s",
            measured=1.0 / pair.tiled_s,
            baseline=1.0 / pair.naive_s,
            published="2-4x; 3x on GPT-2 with 1k" if is_first else None,
            brief="2-4x, +100-300%, latency -50-75%" if is_first else None,
            setup=f"{1e3 * pair.naive_s:.2f} -> {1e3 * pair.tiled_s:.2f} ms",
            why=faster,
        ),
        ReproRow(
            name=f"prefill of {length}: extra memory",
            unit="MB",
            measured=pair.tiled_bytes / 1e6,
            baseline=pair.naive_bytes / 1e6,
            is_change=True,
            published="linear; up to 20x less" if is_first else None,
            brief="-60-80%" if is_first else None,
            setup=f"beside q, k, v and the output; the baseline moves {pair.moved_bytes / 1e9:.2f} GB of scores",
        ),
    ]


def _decode_row(length: int, pair: Pair) -> ReproRow:
    return ReproRow(
        name=f"decode after {length}: speed",
        unit="tokens/s",
        measured=1.0 / pair.tiled_s,
        baseline=1.0 / pair.naive_s,
        setup=f"one query; {1e6 * pair.naive_s:.0f} -> {1e6 * pair.tiled_s:.0f} us",
        why="its row of scores stays in the cache; tiles read K and V once for a group's query heads, in one pass",
    )


def _error_row(errors: Mapping[str, float]) -> ReproRow:
    return ReproRow(
        name="largest error",
        unit="",
        measured=1e6 * errors["tiled"],
        baseline=1e6 * errors["naive"],
        published="exact",
        setup=f"millionths, against float64, over a prompt of {CHECKED_TOKENS} of standard normal numbers",
    )


def _plots(pairs: Mapping[int, Pair]) -> list[BarPlot]:
    groups = [str(length) for length in pairs]
    return [
        BarPlot(
            title="Time per token of a prompt",
            unit="us",
            groups=groups,
            values={
                "scores written out": [1e6 * pair.naive_s / length for length, pair in pairs.items()],
                "tiles": [1e6 * pair.tiled_s / length for length, pair in pairs.items()],
            },
        ),
        BarPlot(
            title="Extra memory",
            unit="MB",
            groups=groups,
            values={
                "scores written out": [pair.naive_bytes / 1e6 for pair in pairs.values()],
                "tiles": [pair.tiled_bytes / 1e6 for pair in pairs.values()],
            },
        ),
    ]


NOTE = (
    "On a GPU the baseline is bound by moving scores to and from HBM; a CPU core multiplies more slowly against its "
    "memory, so less is won while the scores fit the caches and more as they grow. The brief's -60-80% of memory "
    "cannot be right for all lengths: one side is quadratic, the other constant."
)
LEFT_OUT = "Prompts of {} tokens are left out: the baseline's scores alone would take more than 4 GiB."
