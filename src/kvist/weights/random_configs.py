"""The metadata of a random model, with the names that real files of its architecture have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvist.weights.model_shapes import ModelShape
from kvist.weights.tiny_tokenizer import BOS_ID, EOS_ID

# Llama, Mistral and Mixtral share one name in GGUF files.
_GGUF_ARCHITECTURE = {"mistral": "llama", "mixtral": "llama"}
_FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18,
    "bf16": 32,
}  # fmt: skip
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR = 1.0, 4.0

_HF_CLASSES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "gemma3": "Gemma3ForCausalLM",
}  # fmt: skip


def gguf_metadata(shape: ModelShape, name: str, num_layers: int, vocab_size: int, weight_format: str) -> dict[str, Any]:
    """Return the key-values of a GGUF file, without the tokenizer's."""
    architecture = _GGUF_ARCHITECTURE.get(shape.architecture, shape.architecture)
    own: dict[str, Any] = {
        "block_count": num_layers,
        "context_length": shape.max_position,
        "embedding_length": shape.hidden_size,
        "feed_forward_length": shape.intermediate_size,
        "attention.head_count": shape.num_q_heads,
        "attention.head_count_kv": shape.num_kv_heads,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.freq_base": shape.rope_theta,
    }
    if shape.hidden_size != shape.num_q_heads * shape.head_dim or shape.has_qk_norm:
        own |= {"attention.key_length": shape.head_dim, "attention.value_length": shape.head_dim}
    if architecture == "llama":
        own |= {"rope.dimension_count": shape.head_dim, "vocab_size": vocab_size}
    if shape.rope_scaling_factor is not None and shape.rope_original_max_position is None:
        own |= {"rope.scaling.type": "linear", "rope.scaling.factor": shape.rope_scaling_factor}
    if shape.sliding_window is not None:
        own["attention.sliding_window"] = shape.sliding_window
    if shape.num_experts is not None:
        own |= {"expert_count": shape.num_experts, "expert_used_count": shape.num_experts_per_token}
    general = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": f"random {name}",
        "general.file_type": _FILE_TYPES[weight_format],
        "general.quantization_version": 2,
    }
    return general | {f"{architecture}.{key}": value for key, value in own.items()}


def rope_frequency_factors(shape: ModelShape) -> NDArray[np.float32] | None:
    """Return what GGUF files of Llama 3.1 and later hold as rope_freqs.weight: divisors of the rotary frequencies."""
    if shape.rope_original_max_position is None or shape.rope_scaling_factor is None:
        return None
    factors = []
    for pair in range(shape.head_dim // 2):
        wavelength = 2 * math.pi * shape.rope_theta ** (2 * pair / shape.head_dim)
        turns = shape.rope_original_max_position / wavelength
        # Fast pairs stay, slow ones are stretched, those between are blended.
        keep = min(1.0, max(0.0, (turns - _LOW_FREQ_FACTOR) / (_HIGH_FREQ_FACTOR - _LOW_FREQ_FACTOR)))
        factors.append(1 / ((1 - keep) / shape.rope_scaling_factor + keep))
    return np.array(factors, dtype=np.float32)


def hf_config(shape: ModelShape, num_layers: int, vocab_size: int, dtype: str) -> dict[str, Any]:
    """Return config.json."""
    config: dict[str, Any] = {
        "architectures": [_HF_CLASSES[shape.architecture]],
        "model_type": "gemma3_text" if shape.is_gemma else shape.architecture,
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": shape.num_q_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": _hf_rope_scaling(shape),
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": dtype,
    }
    if shape.architecture in ("llama", "qwen3"):
        config["attention_bias"] = False
    if shape.architecture in ("mistral", "mixtral"):
        config["sliding_window"] = shape.sliding_window
    if shape.architecture in ("qwen2", "qwen3"):
        config |= {"use_sliding_window": False, "sliding_window": None}
    if shape.num_experts is not None:
        config |= {"num_local_experts": shape.num_experts, "num_experts_per_tok": shape.num_experts_per_token}
    if shape.is_gemma:
        del config["hidden_act"]
        config |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": shape.head_dim,
            "rope_local_base_freq": 10_000.0,
            "sliding_window": shape.sliding_window,
            "layer_types": [
                "sliding_attention" if shape.has_window(layer) else "full_attention" for layer in range(num_layers)
            ],
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        }
    return config


def _hf_rope_scaling(shape: ModelShape) -> dict[str, Any] | None:
    if shape.rope_scaling_factor is None:
        return None
    if shape.rope_original_max_position is None:
        return {"rope_type": "linear", "factor": shape.rope_scaling_factor}
    return {
        "rope_type": "llama3",
        "factor": shape.rope_scaling_factor,
        "low_freq_factor": _LOW_FREQ_FACTOR,
        "high_freq_factor": _HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": shape.rope_original_max_position,
    }
