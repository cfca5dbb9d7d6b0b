"""Accuracy of the native executor on the default model: what rounding activations, and K and V, costs.

Over public-domain texts (tests/golden/public_domain.json), every position scored with the text so far before it.
Compared with two float32 computations: transformers on torch, from a golden file, and kvist's reference executor on
dequantized weights, in this run. Measured are top-1 agreement, perplexity, and the Kullback-Leibler divergence over
the whole vocabulary.

Run: python -m benchmarks.native_accuracy
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference_executor import MODEL
from benchmarks.result_file import ROOT, take_no_options, write_result
from kvist.execution.kv_dtype import KV_DTYPES, kv_dtype
from kvist.execution.kv_storage import KVStorage
from kvist.execution.logits import Logits
from kvist.execution.native import _native
from kvist.execution.native.load_weights import load_packed_weights
from kvist.execution.native.runner import NativeRunner
from kvist.execution.reference.load_weights import load_weights
from kvist.execution.reference.runner import NumpyRunner
from kvist.execution.runner import Runner
from kvist.execution.step_batch import build_batch
from kvist.execution.threads import MatrixProducts, granted_cores
from kvist.models.registry import read_model
from kvist.weights.checkpoint import Checkpoint, open_checkpoint
from kvist.weights.fetch import resolve_model

GOLDEN = ROOT / "tests" / "golden" / "smollm2-135m-instruct-texts.json"
BLOCK_SIZE = 16
NUM_BLOCKS = 128
CHECKED_TOKENS = 24  # of one text, on every instruction set: the twins in plain C++ are slow
NO_TIE = 1e-3  # the golden best token is certain where the second is further away than this

Array = NDArray[np.float32]


@dataclass
class Scores:
    """Log-probabilities [tokens, vocabulary] become a few numbers per position."""

    logprobs: list[float] = field(default_factory=list)
    best: list[int] = field(default_factory=list)
    divergence: list[float] = field(default_factory=list)  # from the reference executor's

    def add(self, ids: list[int], table: Array, reference: Array) -> None:
        self.logprobs += table[np.arange(len(ids) - 1), ids[1:]].tolist()
        self.best += table.argmax(axis=1).tolist()
        self.divergence += (np.exp(reference) * (reference - table)).sum(axis=1).tolist()

    @property
    def perplexity(self) -> float:
        return float(np.exp(-np.mean(self.logprobs)))


def log_softmax_table(runner: Runner, token_ids: list[int]) -> Array:
    """Log-probabilities of the token after each of `token_ids`: [tokens, vocabulary]."""
    tiles: list[Array] = []

    def take(indices: range, logits: Logits) -> None:
        values = np.stack([logits[i].values for i in range(len(indices))]).astype(np.float64)
        values -= values.max(axis=1, keepdims=True)
        tiles.append((values - np.log(np.exp(values).sum(axis=1, keepdims=True))).astype(np.float32))

    batch = build_batch([(token_ids, 0, array("i", range(NUM_BLOCKS)))], block_size=BLOCK_SIZE, num_padding_tokens=0)
    runner.run(batch, np.arange(len(token_ids)), take)
    return np.concatenate(tiles)


def reference_runner(checkpoint: Checkpoint) -> Runner:
    model, dtype = read_model(checkpoint), kv_dtype("float32", "reference")
    kv = KVStorage(model.spec, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, dtype=dtype)
    return NumpyRunner(model, load_weights(checkpoint, model), kv, MatrixProducts(granted_cores()))


def native_runners(checkpoint: Checkpoint, settings: list[tuple[str, str]]) -> Iterator[NativeRunner]:
    """One for each (instruction set or "", KV dtype), over the same weights."""
    model = read_model(checkpoint)
    weights = load_packed_weights(checkpoint, model, num_threads=granted_cores())
    for isa, dtype in settings:
        yield NativeRunner(
            model,
            weights,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            dtype=kv_dtype(dtype, "native"),
            max_num_tokens=NUM_BLOCKS * BLOCK_SIZE,
            max_num_rows=1,
            num_threads=granted_cores(),
            isa=isa,
        )


def summary(scores: Scores, reference: Scores, golden: list[dict[str, list[float]]]) -> dict[str, float]:
    margins = np.concatenate([case["margins"] for case in golden])
    best = np.concatenate([case["top_token_ids"] for case in golden])
    torch_perplexity = float(np.exp(-np.mean(np.concatenate([case["prompt_logprobs"] for case in golden]))))
    agrees = np.array(scores.best) == best
    return {
        "top-1 agreement with torch": float(agrees.mean()),
        "top-1 agreement with torch, ties aside": float(agrees[margins > NO_TIE].mean()),
        "top-1 agreement with reference": float(np.mean(np.array(scores.best) == np.array(reference.best))),
        "perplexity": scores.perplexity,
        "perplexity above torch's": scores.perplexity / torch_perplexity - 1,
        "mean KL from reference, nats": float(np.mean(scores.divergence)),
        "99th percentile of KL, nats": float(np.percentile(scores.divergence, 99)),
    }


def main() -> None:
    checkpoint = open_checkpoint(Path(resolve_model(MODEL)))
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    texts = [case["prompt_token_ids"] for case in golden]
    names = ["reference", *(f"native, KV {dtype}" for dtype in KV_DTYPES)]
    runners = [reference_runner(checkpoint), *native_runners(checkpoint, [("", dtype) for dtype in KV_DTYPES])]
    scores = {name: Scores() for name in names}
    for ids in texts:
        reference = log_softmax_table(runners[0], ids)
        for name, runner in zip(names, runners, strict=True):
            table = reference if runner is runners[0] else log_softmax_table(runner, ids)
            scores[name].add(ids, table, reference)
    isas = _native.isas()
    twins = {isa: _native.plain_twin(isa) for isa in isas}
    checked = sorted({*isas, *twins.values()})
    tables = {
        isa: log_softmax_table(runner, texts[0][:CHECKED_TOKENS])
        for isa, runner in zip(checked, native_runners(checkpoint, [(isa, "bfloat16") for isa in checked]), strict=True)
    }
    results: dict[str, object] = {
        "num_tokens": sum(map(len, texts)),
        "same bits as the twin in plain C++": {isa: np.array_equal(tables[isa], tables[twins[isa]]) for isa in isas},
        **{name: summary(each, scores["reference"], golden) for name, each in scores.items()},
    }
    limits = (
        "activations are rounded to bfloat16 on amx, elsewhere to int8 with a scale per row and 32 numbers; "
        "English prose of one model"
    )
    print(write_result("native_accuracy", results, seed=None, num_warm_up=0, limits=limits))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
