"""The native plan as `kvist inspect --plan` shows it: operations in order, layers that are alike written once."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from kvist.cli.units import format_bytes, format_count
from kvist.core.model_spec import ModelSpec
from kvist.execution.native.plan_description import (
    PlanDescription,
    Repeated,
    attention_ops_per_token_and_key,
    fold,
    ops_per_token,
    weight_bytes,
)
from kvist.execution.native.traced_plan import PlannedOperation

# What an operation's name does not say by itself.
MEANINGS = {
    "rope_angles": "cosines and sines of the step's positions",
    "rms_norm_quantize": "norm, then int8 rows",
    "quantize": "float32 rows to int8 rows",
    "gated_quantize": "gate and up to int8 rows",
    "rope_write": "rotate q and k, write k and v to their blocks",
    "narrow": "in the last layer only rows whose logits are wanted go on, and those after them",
    "attention": "tiled, over block tables",
    "attention_merge": "segments of long contexts, left to right",
    "expert_routing": "best experts and their shares, per token",
    "expert_gather": "rows in the order of experts",
    "expert_sum": "a token's experts, in expert order",
    "gather": "rows whose logits are wanted",
    "check_finite": "whether each token came through with finite numbers",
    "best_logits": "largest of each part of a row",
    "best_logit": "largest of a row, the lowest id of equals",
}


def plan_lines(plan: PlanDescription, spec: ModelSpec) -> list[str]:
    operations = (*plan.body, *plan.head)
    per_token, per_row = _work(plan.body, spec), _work(plan.head, spec)
    read = sum(weight_bytes(operation) for operation in operations if operation.name != "embed")
    lines = [
        f"Plan on the {plan.isa} kernels, {plan.num_threads} threads, K and V in {plan.kv_dtype}",
        f"  {per_token / 1e9:.4g} GOP per token in products, {per_row / 1e9:.4g} more per row of logits,"
        f" {attention_ops_per_token_and_key(spec)} OP more per token, key and layer in attention",
        f"  {format_bytes(read)} of weights read per step",
    ]
    for title, part in (("body", plan.body), ("head, for rows whose logits are wanted", plan.head)):
        lines.append(f"  {title}")
        for run in fold(part):
            lines += _run_lines(run, spec)
    lines.append(
        f"  workspace {format_bytes(plan.workspace_bytes)} for steps of {plan.max_num_tokens} tokens; a row takes"
    )
    lines += [
        f"    {buffer.role:<22} {buffer.kind:<8} {buffer.width:>7} wide  {format_bytes(buffer.bytes_per_token):>9}"
        for buffer in plan.buffers
    ]
    return lines


def _work(part: tuple[PlannedOperation, ...], spec: ModelSpec) -> int:
    return sum(ops_per_token(operation, spec) for operation in part)


def _run_lines(run: Repeated[PlannedOperation], spec: ModelSpec) -> list[str]:
    mark = "    " if run.count == 1 else "  | "
    head = [] if run.count == 1 else [f"    {run.count} x"]
    return [*head, *(f"  {mark}{_operation_line(operation, spec)}" for operation in run.items)]


def _operation_line(operation: PlannedOperation, spec: ModelSpec) -> str:
    if not operation.weights:
        return f"{operation.name:<18} {MEANINGS.get(operation.name, '')}".rstrip()
    shapes = Counter((weight.num_outputs, weight.width, weight.format) for weight in operation.weights)
    parts = " + ".join(
        f"{f'{count} of ' if count > 1 and operation.name.startswith('expert') else ''}{outputs} x {width} {name}"
        for (outputs, width, name), times in shapes.items()
        for count in ([times] if operation.name.startswith("expert") else [1] * times)
    )
    work = ops_per_token(operation, spec)
    notes = [format_bytes(weight_bytes(operation))] + ([f"{format_count(work)}OP a token"] if work else [])
    added = ", added to the residual" if operation.accumulates else ""
    return f"{operation.name:<18} {parts}{added}  ({', '.join(notes)})"


def plan_json(plan: PlanDescription, spec: ModelSpec) -> dict[str, Any]:
    def operation_json(operation: PlannedOperation) -> dict[str, Any]:
        work = {"weight_bytes": weight_bytes(operation), "ops_per_token": ops_per_token(operation, spec)}
        return asdict(operation) | work

    def part_json(part: tuple[PlannedOperation, ...]) -> list[dict[str, Any]]:
        return [{"count": run.count, "operations": list(map(operation_json, run.items))} for run in fold(part)]

    return {
        "isa": plan.isa,
        "num_threads": plan.num_threads,
        "kv_dtype": plan.kv_dtype,
        "ops_per_token": _work(plan.body, spec),
        "ops_per_logit_row": _work(plan.head, spec),
        "attention_ops_per_token_key_and_layer": attention_ops_per_token_and_key(spec),
        "body": part_json(plan.body),
        "head": part_json(plan.head),
        "buffers": [asdict(buffer) | {"bytes_per_row": buffer.bytes_per_token} for buffer in plan.buffers],
        "max_num_tokens": plan.max_num_tokens,
        "workspace_bytes": plan.workspace_bytes,
    }
