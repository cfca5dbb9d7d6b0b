"""Shapes of well-known models by name, so that a cost can be told without files. Figures of their configs."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from kvist.core.errors import ConfigError
from kvist.core.model_spec import LayerSpec, ModelSpec, MoESpec
from kvist.core.suggest import did_you_mean
from kvist.costmodel.model_size import count_parameters


def _model(  # noqa: PLR0913 - one figure of config.json each
    model_type: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: tuple[int, int],
    vocab: int,
    *,
    max_position: int,
    head_dim: int | None = None,
    experts: tuple[int, int] | None = None,
    tied: bool = False,
    gated: bool = True,
    window: int | None = None,
) -> ModelSpec:
    """heads: query heads and KV heads. experts: how many there are and how many a token uses."""
    head_dim = head_dim or hidden // heads[0]
    layer = LayerSpec(sliding_window=window, rope_theta=10_000.0, rope_scaling=None)
    spec = ModelSpec(
        model_type=model_type,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_layers=layers,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=head_dim,
        max_position=max_position,
        norm_eps=1e-5,
        layers=(layer,) * layers,
        tie_embeddings=tied,
        attention_scale=1.0 / math.sqrt(head_dim),
        activation="silu" if gated else "gelu_tanh",
        is_ffn_gated=gated,
        moe=MoESpec(num_experts=experts[0], num_experts_per_token=experts[1]) if experts else None,
    )
    return replace(spec, num_parameters=count_parameters(spec))


MODELS = {
    "smollm2-135m": _model("llama", 30, 576, 1536, (9, 3), 49_152, max_position=8192, tied=True),
    "smollm2-360m": _model("llama", 32, 960, 2560, (15, 5), 49_152, max_position=8192, tied=True),
    "smollm2-1.7b": _model("llama", 24, 2048, 8192, (32, 32), 49_152, max_position=8192, tied=True),
    "llama-7b": _model("llama", 32, 4096, 11_008, (32, 32), 32_000, max_position=2048),
    "llama-13b": _model("llama", 40, 5120, 13_824, (40, 40), 32_000, max_position=2048),
    "llama-30b": _model("llama", 60, 6656, 17_920, (52, 52), 32_000, max_position=2048),
    "llama-65b": _model("llama", 80, 8192, 22_016, (64, 64), 32_000, max_position=2048),
    "llama-2-7b": _model("llama", 32, 4096, 11_008, (32, 32), 32_000, max_position=4096),
    "llama-2-13b": _model("llama", 40, 5120, 13_824, (40, 40), 32_000, max_position=4096),
    "llama-2-70b": _model("llama", 80, 8192, 28_672, (64, 8), 32_000, max_position=4096),
    "codellama-34b": _model("llama", 48, 8192, 22_016, (64, 8), 32_000, max_position=16_384),
    "llama-3-8b": _model("llama", 32, 4096, 14_336, (32, 8), 128_256, max_position=8192),
    "llama-3-70b": _model("llama", 80, 8192, 28_672, (64, 8), 128_256, max_position=8192),
    "llama-3.1-8b": _model("llama", 32, 4096, 14_336, (32, 8), 128_256, max_position=131_072),
    "llama-3.1-70b": _model("llama", 80, 8192, 28_672, (64, 8), 128_256, max_position=131_072),
    "llama-3.1-405b": _model("llama", 126, 16_384, 53_248, (128, 8), 128_256, max_position=131_072),
    "llama-3.2-1b": _model("llama", 16, 2048, 8192, (32, 8), 128_256, max_position=131_072, tied=True),
    "llama-3.2-3b": _model("llama", 28, 3072, 8192, (24, 8), 128_256, max_position=131_072, tied=True),
    "llama-3.3-70b": _model("llama", 80, 8192, 28_672, (64, 8), 128_256, max_position=131_072),
    "mistral-7b": _model("mistral", 32, 4096, 14_336, (32, 8), 32_768, max_position=32_768),
    "mistral-small-24b": _model("mistral", 40, 5120, 32_768, (32, 8), 131_072, max_position=32_768, head_dim=128),
    "mixtral-8x7b": _model("mixtral", 32, 4096, 14_336, (32, 8), 32_000, max_position=32_768, experts=(8, 2)),
    "mixtral-8x22b": _model("mixtral", 56, 6144, 16_384, (48, 8), 32_768, max_position=65_536, experts=(8, 2)),
    "yi-6b": _model("llama", 32, 4096, 11_008, (32, 4), 64_000, max_position=4096),
    "yi-34b": _model("llama", 60, 7168, 20_480, (56, 8), 64_000, max_position=4096),
    "internlm-20b": _model("llama", 60, 5120, 13_824, (40, 40), 103_168, max_position=4096),
    "qwen-7b": _model("qwen2", 32, 4096, 11_008, (32, 32), 151_936, max_position=8192),
    "qwen-14b": _model("qwen2", 40, 5120, 13_696, (40, 40), 152_064, max_position=8192),
    "qwen-72b": _model("qwen2", 80, 8192, 24_576, (64, 64), 152_064, max_position=32_768),
    "qwen2-7b": _model("qwen2", 28, 3584, 18_944, (28, 4), 152_064, max_position=32_768),
    "qwen2-72b": _model("qwen2", 80, 8192, 29_568, (64, 8), 152_064, max_position=32_768),
    "qwen2.5-0.5b": _model("qwen2", 24, 896, 4864, (14, 2), 151_936, max_position=32_768, tied=True),
    "qwen2.5-1.5b": _model("qwen2", 28, 1536, 8960, (12, 2), 151_936, max_position=32_768, tied=True),
    "qwen2.5-3b": _model("qwen2", 36, 2048, 11_008, (16, 2), 151_936, max_position=32_768, tied=True),
    "qwen2.5-7b": _model("qwen2", 28, 3584, 18_944, (28, 4), 152_064, max_position=131_072),
    "qwen2.5-14b": _model("qwen2", 48, 5120, 13_824, (40, 8), 152_064, max_position=131_072),
    "qwen2.5-32b": _model("qwen2", 64, 5120, 27_648, (40, 8), 152_064, max_position=131_072),
    "qwen2.5-72b": _model("qwen2", 80, 8192, 29_568, (64, 8), 152_064, max_position=131_072),
    "qwen3-0.6b": _model("qwen3", 28, 1024, 3072, (16, 8), 151_936, max_position=40_960, head_dim=128, tied=True),
    "qwen3-1.7b": _model("qwen3", 28, 2048, 6144, (16, 8), 151_936, max_position=40_960, head_dim=128, tied=True),
    "qwen3-4b": _model("qwen3", 36, 2560, 9728, (32, 8), 151_936, max_position=40_960, head_dim=128, tied=True),
    "qwen3-8b": _model("qwen3", 36, 4096, 12_288, (32, 8), 151_936, max_position=40_960, head_dim=128),
    "qwen3-14b": _model("qwen3", 40, 5120, 17_408, (40, 8), 151_936, max_position=40_960, head_dim=128),
    "qwen3-32b": _model("qwen3", 64, 5120, 25_600, (64, 8), 151_936, max_position=40_960, head_dim=128),
    "qwen3-30b-a3b": _model(
        "qwen3_moe", 48, 2048, 768, (32, 4), 151_936, max_position=40_960, head_dim=128, experts=(128, 8)
    ),
    "qwen3-235b-a22b": _model(
        "qwen3_moe", 94, 4096, 1536, (64, 4), 151_936, max_position=40_960, head_dim=128, experts=(128, 8)
    ),
    "gpt-oss-20b": _model(
        "gpt_oss", 24, 2880, 2880, (64, 8), 201_088, max_position=131_072, head_dim=64, experts=(32, 4)
    ),
    "gpt-oss-120b": _model(
        "gpt_oss", 36, 2880, 2880, (64, 8), 201_088, max_position=131_072, head_dim=64, experts=(128, 4)
    ),
    "gemma-2-9b": _model("gemma2", 42, 3584, 14_336, (16, 8), 256_000, max_position=8192, head_dim=256, tied=True),
    "gemma-2-27b": _model("gemma2", 46, 4608, 36_864, (32, 16), 256_000, max_position=8192, head_dim=128, tied=True),
    "gemma-3-270m": _model("gemma3", 18, 640, 2048, (4, 1), 262_144, max_position=32_768, head_dim=256, tied=True),
    "phi-2": _model("phi", 32, 2560, 10_240, (32, 32), 51_200, max_position=2048, gated=False),
    "opt-1.3b": _model("opt", 24, 2048, 8192, (32, 32), 50_272, max_position=2048, tied=True, gated=False),
    "opt-6.7b": _model("opt", 32, 4096, 16_384, (32, 32), 50_272, max_position=2048, tied=True, gated=False),
    "opt-13b": _model("opt", 40, 5120, 20_480, (40, 40), 50_272, max_position=2048, tied=True, gated=False),
    "opt-30b": _model("opt", 48, 7168, 28_672, (56, 56), 50_272, max_position=2048, tied=True, gated=False),
    "opt-66b": _model("opt", 64, 9216, 36_864, (72, 72), 50_272, max_position=2048, tied=True, gated=False),
    "opt-175b": _model("opt", 96, 12_288, 49_152, (96, 96), 50_272, max_position=2048, tied=True, gated=False),
    "bloom-176b": _model("bloom", 70, 14_336, 57_344, (112, 112), 250_880, max_position=2048, tied=True, gated=False),
    "falcon-40b": _model("falcon", 60, 8192, 32_768, (128, 8), 65_024, max_position=2048, head_dim=64, gated=False),
    "falcon-180b": _model("falcon", 80, 14_848, 59_392, (232, 8), 65_024, max_position=2048, head_dim=64, gated=False),
}

_SAME_SHAPE = {
    "vicuna-7b": "llama-2-7b", "vicuna-13b": "llama-2-13b", "vicuna-33b": "llama-30b", "llama-33b": "llama-30b",
    "llama2-7b": "llama-2-7b", "llama2-13b": "llama-2-13b", "llama2-70b": "llama-2-70b", "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b", "llama3.1-8b": "llama-3.1-8b", "llama3.1-70b": "llama-3.1-70b",
    "llama3.1-405b": "llama-3.1-405b", "llama3.3-70b": "llama-3.3-70b", "codellama-7b": "llama-2-7b",
    "codellama-13b": "llama-2-13b", "codellama-70b": "llama-2-70b", "bloom": "bloom-176b",
    "qwen2.5-coder-32b": "qwen2.5-32b", "qwen2.5-coder-7b": "qwen2.5-7b", "qwq-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-70b": "llama-3.1-70b", "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
}  # fmt: skip
_ENDINGS = r"-(instruct|chat|hf|it|base|fp8|fp16|bf16|fp4|nvfp4|awq|gptq|int4|int8|dynamic|kv|v0\.\d|2407|2501|2507)$"


def find_model_spec(name: str) -> ModelSpec:
    """The shape of the model that people call `name`, whatever fine-tuned. Raises ConfigError naming the nearest."""
    plain = re.sub(r"[\s_]+", "-", name.split("/")[-1].strip().lower())
    while (shorter := re.sub(_ENDINGS, "", plain)) != plain:
        plain = shorter
    plain = re.sub(r"^meta-", "", plain)
    spec = MODELS.get(_SAME_SHAPE.get(plain, plain))
    if spec is None:
        raise ConfigError(
            f"model {name!r} is neither in the catalogue nor a folder with a config.json; the catalogue has "
            f"{', '.join(MODELS)}.{did_you_mean(plain, [*MODELS, *_SAME_SHAPE])}"
        )
    return spec
