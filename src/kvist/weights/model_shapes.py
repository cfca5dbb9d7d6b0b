"""The shapes of well-known models, for random models that are as slow and as large as the real ones.

Figures are those of each model's published config. `tiny-*` are the smallest that still show each architecture's
traits (grouped heads, windows, norms, experts); the tests run on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a model, named as in Hugging Face's config.json.

    rope_scaling_factor: of the llama3 kind if rope_original_max_position is given, else linear.
    vocab_size None: that of the tiny tokenizer. global_layer_interval: every n-th layer has no sliding window.
    """

    architecture: Architecture
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    vocab_size: int | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling_factor: float | None = None
    rope_original_max_position: int | None = None
    sliding_window: int | None = None
    global_layer_interval: int | None = None
    tie_embeddings: bool = False
    num_experts: int | None = None
    num_experts_per_token: int = 2

    @property
    def has_qkv_bias(self) -> bool:
        return self.architecture == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        return self.architecture in ("qwen3", "gemma3")

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"

    @property
    def is_rope_interleaved_in_gguf(self) -> bool:
        """True if GGUF files store q and k with the rotated pairs side by side."""
        return self.architecture in ("llama", "mistral", "mixtral")

    def has_window(self, layer: int) -> bool:
        if self.sliding_window is None:
            return False
        return self.global_layer_interval is None or (layer + 1) % self.global_layer_interval != 0


def _tiny(architecture: Architecture, **changes: object) -> ModelShape:
    dimensions: dict[str, object] = {
        "hidden_size": 64, "intermediate_size": 256, "num_layers": 2, "num_q_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "max_position": 4096,
    }  # fmt: skip
    return ModelShape(architecture=architecture, **(dimensions | changes))  # type: ignore[arg-type]


SHAPES = {
    "smollm2-135m": ModelShape(
        architecture="llama", hidden_size=576, intermediate_size=1536, num_layers=30, num_q_heads=9, num_kv_heads=3,
        head_dim=64, max_position=8192, vocab_size=49_152, rope_theta=100_000.0, tie_embeddings=True,
    ),
    "llama-3.2-1b": ModelShape(
        architecture="llama", hidden_size=2048, intermediate_size=8192, num_layers=16, num_q_heads=32, num_kv_heads=8,
        head_dim=64, max_position=131_072, vocab_size=128_256, rope_theta=500_000.0, rope_scaling_factor=32.0,
        rope_original_max_position=8192, tie_embeddings=True,
    ),
    "llama-2-7b": ModelShape(
        architecture="llama", hidden_size=4096, intermediate_size=11_008, num_layers=32, num_q_heads=32,
        num_kv_heads=32, head_dim=128, max_position=4096, vocab_size=32_000,
    ),
    "mistral-7b": ModelShape(
        architecture="mistral", hidden_size=4096, intermediate_size=14_336, num_layers=32, num_q_heads=32,
        num_kv_heads=8, head_dim=128, max_position=32_768, vocab_size=32_000, sliding_window=4096,
    ),
    "mixtral-tiny": ModelShape(
        architecture="mixtral", hidden_size=512, intermediate_size=1792, num_layers=8, num_q_heads=8, num_kv_heads=2,
        head_dim=64, max_position=32_768, vocab_size=32_000, rope_theta=1e6, num_experts=8,
    ),
    "qwen2.5-0.5b": ModelShape(
        architecture="qwen2", hidden_size=896, intermediate_size=4864, num_layers=24, num_q_heads=14, num_kv_heads=2,
        head_dim=64, max_position=32_768, vocab_size=151_936, norm_eps=1e-6, rope_theta=1e6, tie_embeddings=True,
    ),
    "qwen3-0.6b": ModelShape(
        architecture="qwen3", hidden_size=1024, intermediate_size=3072, num_layers=28, num_q_heads=16, num_kv_heads=8,
        head_dim=128, max_position=40_960, vocab_size=151_936, norm_eps=1e-6, rope_theta=1e6, tie_embeddings=True,
    ),
    "gemma-3-270m": ModelShape(
        architecture="gemma3", hidden_size=640, intermediate_size=2048, num_layers=18, num_q_heads=4, num_kv_heads=1,
        head_dim=256, max_position=32_768, vocab_size=262_144, norm_eps=1e-6, rope_theta=1e6, sliding_window=512,
        global_layer_interval=6, tie_embeddings=True,
    ),
    "tiny-llama": _tiny("llama", tie_embeddings=True),
    "tiny-llama-linear": _tiny("llama", rope_scaling_factor=4.0),
    "tiny-llama3": _tiny(
        "llama", rope_theta=500_000.0, rope_scaling_factor=8.0, rope_original_max_position=64, head_dim=32,
    ),
    "tiny-mistral": _tiny("mistral", sliding_window=24),
    "tiny-mixtral": _tiny("mixtral", num_experts=4, rope_theta=1e6),
    "tiny-qwen2": _tiny("qwen2", norm_eps=1e-6, rope_theta=1e6, tie_embeddings=True),
    "tiny-qwen3": _tiny("qwen3", norm_eps=1e-6, rope_theta=1e6, tie_embeddings=True, head_dim=32),
    "tiny-gemma3": _tiny(
        "gemma3", num_layers=6, num_kv_heads=1, norm_eps=1e-6, rope_theta=1e6, sliding_window=24,
        global_layer_interval=6, tie_embeddings=True, head_dim=32,
    ),
}  # fmt: skip
