"""Write README.md's table of measured results from benchmarks/results. With --check: only say whether it is fresh."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generated_region import write_or_check

ROOT = Path(__file__).parent.parent
README, RESULTS = ROOT / "README.md", ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: made by scripts/readme_tables.py -->\n", "<!-- /results -->\n"


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a result file. `path` leads to a value, or to a spread whose median is shown."""

    file: str
    path: tuple[str, ...]
    what: str
    goal: str
    unit: str = ""  # where the result has none of its own


ROWS = (
    Row("scheduler", ("decode_256_running",), "schedule and update, 256 running requests, tree of 100k blocks", "1 ms"),
    Row("kv_cache", ("serve_new_prompt_100k",), "match and insert a prompt of 100k tokens", "20 ms"),
    Row(
        "kv_cache",
        ("bytes_chat_multi_turn", "per_block"),
        "prefix tree on multi-turn chats",
        "300 bytes",
        "bytes a block",
    ),
    Row(
        "kv_cache", ("bytes_one_block_per_node_star", "per_block"), "prefix tree at worst", "700 bytes", "bytes a block"
    ),
    Row(
        "engine_overhead",
        ("thread", "cpu_per_token"),
        "CPU time per token outside the executor, 32 streams, one process",
        "150 us",
    ),
    Row(
        "engine_overhead",
        ("process", "cpu_per_token"),
        "CPU time per token outside the executor, 32 streams, two processes",
        "150 us",
    ),
    Row(
        "chat_multi_turn",
        ("hit_share",),
        "prompt tokens read from the cache, multi-turn chats",
        "85%",
        "of prompt tokens",
    ),
    Row("text", ("detokenize_many_scripts",), "incremental detokenizer, many scripts", "10 us"),
    Row(
        "native_accuracy",
        ("native, KV bfloat16", "top-1 agreement with torch"),
        "default model: greedy token as in float32, public-domain texts",
        "97%",
        "of positions",
    ),
    Row(
        "native_accuracy",
        ("native, KV bfloat16", "perplexity above torch's"),
        "default model: perplexity above that in float32, same texts",
        "1%",
        "of perplexity",
    ),
    Row(
        "native_accuracy",
        ("native, KV bfloat16", "mean KL from reference, nats"),
        "default model: mean Kullback-Leibler divergence from float32, same texts",
        "to be stated",
        "nats",
    ),
    Row("native_executor", ("decode at 1 streams",), "default model: decode, one stream", "none yet"),
    Row("native_executor", ("decode at 32 streams",), "default model: decode, 32 streams together", "none yet"),
    Row("native_executor", ("prefill of 512 tokens",), "default model: prefill", "none yet"),
    Row(
        "speculation",
        ("copying_code_1", "ngram_ratio"),
        "look-up drafts against none: one stream that copies code",
        "none yet",
        "times the speed, best runs",
    ),
    Row(
        "speculation",
        ("chat_4", "ngram_ratio"),
        "look-up drafts against none: four streams of plain chat",
        "none yet",
        "times the speed, best runs",
    ),
    Row(
        "step_trace",
        ("kernels of every 128. step timed", "1 request", "cpu_us_per_step"),
        "a step trace: CPU time that it takes of each step of one stream",
        "2% of a step",
        "us",
    ),
    Row(
        "reference_executor",
        ("decode at 1 streams",),
        "NumPy executor, default model: decode, one stream",
        "15 tokens/s",
    ),
    Row(
        "cluster_routing",
        ("kv_centric", "mean_ttft_s"),
        "Mooncake's conversation trace on 5 + 5 hosts, simulated: mean TTFT, KV-centric routing",
        "3.07 s in the paper",
        "s",
    ),
    Row("reference_executor", ("prefill of 512 tokens",), "NumPy executor, default model: prefill", "150 tokens/s"),
)


def table() -> str:
    """The whole part between the marks. Rows whose result file does not exist are left out."""
    lines = ["| What | Median | Goal | CPU, load | Command |", "| --- | --- | --- | --- | --- |"]
    for row in ROWS:
        path = RESULTS / f"{row.file}.json"
        if path.exists():
            lines.append(_line(row, json.loads(path.read_text(encoding="utf-8"))))
    note = "Repeats, spread, commit and what limits each number are in [benchmarks/results](benchmarks/results)."
    return "\n".join([*lines, "", note, ""])


def _line(row: Row, document: dict[str, Any]) -> str:
    value, unit = document["results"], row.unit
    for key in row.path:
        value = value[key]
    if isinstance(value, dict):
        value, unit = value["median"], row.unit or value["unit"]
    machine = document["machine"]
    cpu = f"{machine['num_cores']} x {machine['cpu'].replace('(R)', '')}, load {machine['load_average_1_min']}"
    shown = f"{100 * value:.1f}%" if unit.startswith("of ") else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"| {row.what} | {shown} {unit} | {row.goal} | {cpu} | `{document['command']}` |"


if __name__ == "__main__":
    sys.exit(write_or_check(README, (BEGIN, END), table(), script="readme_tables.py", words=sys.argv[1:]))
