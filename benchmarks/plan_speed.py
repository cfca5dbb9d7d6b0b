"""What a plan over 200 candidates and more costs on two cores: seconds, simulated steps and tokens per CPU second.

One `kvist plan` of an 8B model on four GPUs, in two number formats, at full effort, in two processes. wall_s means
something where nothing else runs; cpu_s, of all processes, nearly anywhere.

Run: python -m benchmarks.plan_speed
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks.result_file import take_no_options, write_result
from kvist.cli.main import main as kvist

NUM_PROCESSES = 2
WORDS = (
    f"plan --jobs {NUM_PROCESSES} --model llama-3.1-8b --device H100 --gpus 4 --dtype bf16,fp8 --workload service_chat "
    "--num-prompts 600 --slo ttft=500ms,tpot=50ms"
)
KEPT = (
    "candidates", "bounded_out", "simulations", "simulated_steps", "simulated_tokens", "cpu_s", "wall_s", "seed",
    "num_prompts",
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        if kvist([*shlex.split(WORDS), "--json", str(path)]) != 0:
            raise SystemExit("there is no plan")
        plan = json.loads(path.read_text(encoding="utf-8"))
    results: dict[str, object] = {
        "command": f"kvist {WORDS}",
        "processes": NUM_PROCESSES,
        **{name: plan[name] for name in KEPT},
        "steps_per_cpu_s": plan["simulated_steps"] / plan["cpu_s"],
        "tokens_per_cpu_s": plan["simulated_tokens"] / plan["cpu_s"],
        "winner": plan["winner"]["candidate"],
        "goodput": plan["winner"]["goodput"],
    }
    path = write_result(
        "plan_speed",
        results,
        seed=plan["seed"],
        num_warm_up=0,
        limits=(
            "the interpreter: planning and applying the steps that are not taken in bulk. cpu_s counts the search and "
            "the look at the finalists; steps and tokens are those of the search alone"
        ),
    )
    sys.stdout.write(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    take_no_options(__doc__)
    main()
