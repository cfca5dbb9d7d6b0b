"""Step times that DistServe's authors fitted to their measurements on A100-80GB-SXM: of their engine and of the vLLM
of its time. From the profiles in DistServe's repository (Apache-2.0); milliseconds, see `PhaseStepTime`."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.cluster_config import ReplicaGroupConfig
from kvist.core.errors import ConfigError
from kvist.costmodel.phase_step_time import DecodeFit, PhaseStepTime, PrefillFit
from kvist.costmodel.step_time_model import StepTimeModel

Numbers = tuple[float, float, float]

# By model and ranks: prefill, decode, decode of large batches.
SWIFT_TRANSFORMER: dict[tuple[str, int], tuple[Numbers, Numbers, Numbers]] = {
    ("opt-13b", 1): ((18.1, 0.1019, 7.122e-6), (19.93, 6.269e-4, 0.03851), (7.166, 5.798e-4, 0.1583)),
    ("opt-13b", 2): ((14.74, 0.06858, 2.45e-6), (13.29, 3.411e-4, 0.06296), (10.64, 3.118e-4, 0.08563)),
    ("opt-13b", 4): ((12.06, 0.03808, 5.226e-7), (10.26, 1.879e-4, 0.03269), (10.48, 1.712e-4, 0.04567)),
    ("opt-66b", 2): ((43.06, 0.2742, 2.248e-5), (48.29, 9.424e-4, 0.1276), (28.73, 4.745e-4, 0.2962)),
    ("opt-66b", 3): ((33.0, 0.1957, 1.221e-5), (35.8, 5.845e-4, 0.09527), (22.65, 5.358e-4, 0.2085)),
    ("opt-66b", 4): ((29.44, 0.1514, 8.317e-6), (30.76, 4.519e-4, 0.06328), (27.47, 4.047e-4, 0.1248)),
    ("opt-66b", 8): ((25.49, 0.1066, 3.391e-6), (23.16, 2.269e-4, 0.04801), (21.72, 3.758e-4, 0.08979)),
}
VLLM_2023: dict[tuple[str, int], tuple[Numbers, Numbers, Numbers]] = {
    ("opt-13b", 1): ((22.05, 0.1405, 8.077e-6), (23.48, 5.929e-4, 0.06073), (20.21, 4.908e-4, 0.12)),
    ("opt-13b", 2): ((27.44, 0.09055, 8.452e-6), (24.54, 2.244e-4, 0.08716), (17.95, 4.571e-4, 0.1118)),
    ("opt-13b", 4): ((30.54, 0.05151, 4.232e-7), (25.9, 7.754e-5, 0.05528), (23.88, 2.84e-4, 0.06277)),
    ("opt-66b", 4): ((42.97, 0.2129, 4.601e-5), (39.58, 6.946e-4, 0.1358), (40.86, 4.265e-4, 0.1951)),
    ("opt-66b", 8): ((38.93, 0.1574, 4.532e-6), (31.18, 2.756e-4, 0.06798), (29.09, 6.028e-4, 0.139)),
}


@dataclass(frozen=True, slots=True)
class FittedLatencies:
    """Gives each group of replicas the step times of its model and ranks. Raises ConfigError where none were fitted."""

    table: dict[tuple[str, int], tuple[Numbers, Numbers, Numbers]]

    def __call__(self, group: ReplicaGroupConfig) -> StepTimeModel:
        return self.of(group.model or "", ranks=group.tensor_parallel_size, num_stages=group.pipeline_parallel_size)

    def of(self, model: str, *, ranks: int = 1, num_stages: int = 1) -> StepTimeModel:
        if (model, ranks) not in self.table:
            raise ConfigError(f"DistServe has no latencies of {model} on {ranks} devices")
        prefill, decode, large = self.table[model, ranks]
        return PhaseStepTime(
            prefill=PrefillFit(a=prefill[0], b=prefill[1], c=prefill[2]),
            decode=DecodeFit(a=decode[0], b=decode[1], c=decode[2]),
            large_decode=DecodeFit(a=large[0], b=large[1], c=large[2]),
            num_stages=num_stages,
        )
