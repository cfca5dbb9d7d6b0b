"""Flags of vLLM, SGLang and llama-server that kvist knows but does not need or does not have.

A value that asks for what kvist does anyway is accepted; anything else is refused with a sentence, never ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kvist.core.errors import ConfigError

_ONE_DEVICE = "kvist runs on one CPU so far, without parallel or distributed execution"
_NO_GPU = "kvist runs on the CPU so far"


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """Spellings, the values that change nothing ("" is the bare flag), and why other values are refused."""

    spellings: tuple[str, ...]
    reason: str
    neutral_values: tuple[str, ...] = ()


FOREIGN_FLAGS = (
    ForeignFlag(("--tensor-parallel-size", "-tp", "--tp-size", "--tp"), _ONE_DEVICE, ("1",)),
    ForeignFlag(("--pipeline-parallel-size", "-pp", "--pp-size"), _ONE_DEVICE, ("1",)),
    ForeignFlag(("--data-parallel-size", "-dp", "--dp-size"), _ONE_DEVICE, ("1",)),
    ForeignFlag(("--expert-parallel-size", "--ep-size", "--decode-context-parallel-size"), _ONE_DEVICE, ("1",)),
    ForeignFlag(("--enable-expert-parallel",), _ONE_DEVICE),
    ForeignFlag(("--nnodes",), _ONE_DEVICE, ("1",)),
    ForeignFlag(("--node-rank",), _ONE_DEVICE, ("0",)),
    ForeignFlag(("--master-addr", "--dist-init-addr", "--rpc", "--split-mode", "--tensor-split"), _ONE_DEVICE),
    ForeignFlag(("--n-gpu-layers", "-ngl"), _NO_GPU, ("0",)),
    ForeignFlag(("--device",), _NO_GPU, ("auto", "cpu")),
    ForeignFlag(
        ("--gpu-memory-utilization", "--mem-fraction-static"),
        f"{_NO_GPU}; size the KV pool with --kv-cache-bytes, --num-blocks or --max-total-tokens",
    ),
    ForeignFlag(("--enforce-eager",), "no executor captures graphs", ("",)),
    ForeignFlag(("--dtype",), "activations are float32; the weights' format is the file's", ("auto", "float32")),
    ForeignFlag(
        ("--quantization", "-q"),
        "the number format is read from the model file; choose a file that holds the one you want",
        ("gguf", "none"),
    ),
    ForeignFlag(("--load-format",), "the format is seen from the file", ("auto", "gguf", "safetensors")),
    ForeignFlag(
        ("--trust-remote-code",), "kvist never runs code from a model repository; drop the flag or convert the model"
    ),
    ForeignFlag(
        ("--prefix-caching-hash-algo",), "the prefix tree compares token ids themselves, so there is no hash to choose"
    ),
    ForeignFlag(("--cache-type-v", "-ctv"), "K and V have one number format: use --kv-cache-dtype (-ctk)"),
    ForeignFlag(("--cache-reuse", "--cache-ram", "--slot-save-path"), "shared prefixes are reused by the prefix tree"),
    ForeignFlag(
        (
            "--kv-offloading-size",
            "--kv-offloading-backend",
            "--enable-hierarchical-cache",
            "--hicache-ratio",
            "--hicache-size",
            "--hicache-write-policy",
            "--hicache-storage-backend",
            "--swap-space",
            "--cpu-offload-gb",
        ),
        "KV lives in one tier, main memory, so far",
    ),
    ForeignFlag(
        (
            "--kv-transfer-config",
            "--disaggregation-mode",
            "--disaggregation-transfer-backend",
            "--disaggregation-bootstrap-port",
        ),
        "prefill and decode run on the same engine so far",
    ),
    ForeignFlag(("--kv-events-config",), "KV events are not published so far"),
    ForeignFlag(
        (
            "--enable-lora",
            "--lora-modules",
            "--max-loras",
            "--max-lora-rank",
            "--lora-paths",
            "--max-loras-per-batch",
            "--lora",
        ),
        "LoRA adapters are not supported so far; merge the adapter into the weights",
    ),
    ForeignFlag(
        ("--speculative-algorithm", "--spec-type"),
        "use --speculative-method ngram, or name a draft model with --speculative-model",
        ("none",),
    ),
    ForeignFlag(
        ("--speculative-num-steps", "--speculative-eagle-topk"),
        "drafts are one row of tokens: --num-speculative-tokens says how many",
    ),
    ForeignFlag(
        ("--tool-call-parser", "--enable-auto-tool-choice"), "tool calls are not parsed so far; requests get plain text"
    ),
    ForeignFlag(
        ("--reasoning-parser", "--reasoning-format"),
        "reasoning is not split from the answer so far",
        ("none",),
    ),
    ForeignFlag(
        ("--structured-outputs-config", "--grammar-backend"), "structured outputs are not supported so far", ("none",)
    ),
    ForeignFlag(
        ("--otlp-traces-endpoint", "--collect-detailed-traces", "--enable-trace"), "traces are not exported so far"
    ),
    ForeignFlag(("--enable-metrics", "--metrics", "--enable-cache-report", "--jinja"), "it is always on", ("",)),
    ForeignFlag(("--enable-chunked-prefill",), "use --policy to choose how prompts are chunked", ("",)),
    ForeignFlag(("--no-enable-chunked-prefill",), "use --policy prefill_first or decode_first"),
    ForeignFlag(
        ("--prefill-schedule-interval", "--prefill-decode-interval", "--enable-mixed-chunk"),
        "use --policy to choose how a step is filled",
    ),
)


class _Refuse(argparse.Action):
    def __init__(self, *, foreign: ForeignFlag, **options: Any) -> None:  # Any: handed on to argparse
        # A flag that is fine without a value must not swallow the MODEL after it.
        super().__init__(nargs=0 if "" in foreign.neutral_values else "?", const="", **options)
        self._foreign = foreign

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        value = "" if self.nargs == 0 else str(values)
        if value.lower() not in self._foreign.neutral_values:
            asked = f"{option_string} {value}".strip()
            raise ConfigError(f"{asked} is not available: {self._foreign.reason}.")


def add_foreign_flags(parser: argparse.ArgumentParser, own: Collection[str]) -> None:
    """Add every foreign spelling that is not one of `own`."""
    for foreign in FOREIGN_FLAGS:
        spellings = [name for name in foreign.spellings if name not in own]
        if spellings:
            parser.add_argument(
                *spellings,
                dest=argparse.SUPPRESS,
                action=_Refuse,
                foreign=foreign,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
