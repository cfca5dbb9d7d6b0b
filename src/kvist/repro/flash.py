"""FlashAttention (NeurIPS'22): exact attention in tiles against one that materializes its scores, layer against layer.

Both compute the same causal attention of the default model's heads with the same instructions on the same threads:
those of the engine's default kernels and, where these multiply on the matrix unit, float32 lanes beside them. The
baseline skips what no query sees, as the tiled one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvist.core.clock import Clock
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
MATRIX_UNIT, UNIT_STEP = "amx", 32  # the numbers that its products add up


@dataclass(frozen=True, slots=True)
class Pair:
    """Best times in seconds, workspaces in bytes. lanes_s: baseline and tiles in float32 lanes, if those are others."""

    naive_s: float
    tiled_s: float
    naive_bytes: int
    tiled_bytes: int
    moved_bytes: int
    lanes_s: tuple[float, float] | None


def run(setting: ReproSetting) -> ReproResult:
    spec = read_model(open_checkpoint(setting.model_path)).spec
    choose_executor("native", spec)
    heads = Heads(spec.num_q_heads, spec.num_kv_heads, spec.head_dim)
    isas = [isa for isa in _native.isas() if isa != MATRIX_UNIT or not heads.head_dim % UNIT_STEP]
    lanes = next(isa for isa in isas if isa != MATRIX_UNIT)
    pool = _native.ThreadPool(setting.executor.num_threads or granted_cores())
    bench = _Bench(heads, isas[0], lanes, pool, RealClock(), QUICK_ROUNDS if setting.is_quick else ROUNDS)
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
            f"One layer, {heads.num_q} query heads and {heads.num_kv} of K and V of {heads.head_dim}, causal,"
            f" {isas[0]} kernels ({bench.dtype}) on {pool.num_threads} threads; best of {bench.rounds} rounds in turn."
            " Baseline: scores of all heads written out, softmax over them, their product with V; in C++ by the same"
            " instructions."
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
    lanes: str
    pool: _native.ThreadPool
    clock: Clock
    rounds: int

    @property
    def dtype(self) -> str:
        """Of K and V: what the unit multiplies, or what lanes do without widening."""
        return "bfloat16" if self.isa == MATRIX_UNIT else "float32"

    def pair(self, *, num_tokens: int, num_queries: int) -> Pair:
        tokens = Tokens.random(self.heads, num_tokens=num_tokens, num_queries=num_queries)
        isas = {"": self.isa} if self.isa == self.lanes else {"": self.isa, "lanes": self.lanes}
        naive = {name: self._naive(isa, tokens) for name, isa in isas.items()}
        tiled = {name: self._tiled(isa, tokens) for name, isa in isas.items()}
        naive_s: dict[str, list[float]] = {name: [] for name in isas}
        tiled_s: dict[str, list[float]] = {name: [] for name in isas}
        for _ in range(self.rounds):
            for name in isas:
                naive_s[name].append(naive[name].run(tokens)[1])
                tiled_s[name].append(tiled[name].run(num_queries)[1])
        return Pair(
            naive_s=min(naive_s[""]),
            tiled_s=min(tiled_s[""]),
            naive_bytes=naive[""].workspace_bytes,
            tiled_bytes=tiled[""].workspace_bytes,
            moved_bytes=bytes_of_scores_moved(
                self.heads,
                num_tokens=num_tokens,
                num_queries=num_queries,
                weight_bytes=2 if self.isa == MATRIX_UNIT else 4,
            ),
            lanes_s=(min(naive_s["lanes"]), min(tiled_s["lanes"])) if "lanes" in isas else None,
        )

    def errors(self) -> dict[str, float]:
        """Largest difference from float64, over a prompt."""
        tokens = Tokens.random(self.heads, num_tokens=CHECKED_TOKENS, num_queries=CHECKED_TOKENS)
        exact = exact_attention(tokens, self.heads)
        return {
            "naive": float(np.abs(self._naive(self.isa, tokens).run(tokens)[0] - exact).max()),
            "tiled": float(np.abs(self._tiled(self.isa, tokens).run(CHECKED_TOKENS)[0] - exact).max()),
        }

    def _naive(self, isa: str, tokens: Tokens) -> NaiveAttention:
        naive = NaiveAttention(
            self.heads, isa=isa, pool=self.pool, clock=self.clock, num_tokens=len(tokens.k), num_queries=len(tokens.q)
        )
        naive.fill(tokens)
        return naive

    def _tiled(self, isa: str, tokens: Tokens) -> TiledAttention:
        dtype = "bfloat16" if isa == MATRIX_UNIT else "float32"
        tiled = TiledAttention(
            self.heads, isa=isa, dtype=dtype, pool=self.pool, num_tokens=len(tokens.k), num_queries=len(tokens.q)
        )
        tiled.fill(tokens)
        return tiled


def _prefill_rows(length: int, pair: Pair, *, is_first: bool) -> list[ReproRow]:
    lanes = ""
    if pair.lanes_s:
        naive_s, tiled_s = pair.lanes_s
        lanes = f"in float32 lanes {1e3 * naive_s:.2f} -> {1e3 * tiled_s:.2f} ms, {naive_s / tiled_s:.2f}x"
    return [
        ReproRow(
            name=f"prefill of {length}: speed",
            unit="prompts/s",
            measured=1.0 / pair.tiled_s,
            baseline=1.0 / pair.naive_s,
            published="2-4x; 3x on GPT-2 with 1k" if is_first else None,
            brief="2-4x, +100-300%, latency -50-75%" if is_first else None,
            setup=f"{1e3 * pair.naive_s:.2f} -> {1e3 * pair.tiled_s:.2f} ms",
            why=lanes,
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
