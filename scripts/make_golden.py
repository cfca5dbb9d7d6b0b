"""Writes tests/golden/*.json: what an independent implementation (transformers on torch) computes for our models.

Run by hand, in an environment of its own; the tests only read what it wrote:

    python3 -m venv golden && golden/bin/pip install -e . gguf torch==2.13.0 transformers==5.24.0
    golden/bin/python scripts/make_golden.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf

GGUF files are read and dequantized by the `gguf` package and rewritten here as a Hugging Face checkpoint, so nothing
of kvist takes part but for writing the random models. Prompt ids of the real model come from its vocabulary and
merges through the `tokenizers` library, put together here as the model's card describes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.numpy import save_file

from kvist.weights.random_model import make_random_model

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
NUM_NEW_TOKENS = 32
SEED = 5
TINY_FORMATS = ("q4_k_m", "f32", "hf")
TINY_MODELS = (
    "tiny-llama",
    "tiny-llama-linear",
    "tiny-llama3",
    "tiny-mistral",
    "tiny-mixtral",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-gemma3",
)
TINY_PROMPT_LENGTHS = (1, 7, 40, 150)  # the windows of the tiny models are 24 tokens
# Real widths and head counts, few layers: (shape, format, layers, prompt lengths).
SHAPED_MODELS = (
    ("llama-3.2-1b", "q4_k_m", 2, (9, 200)),
    ("mistral-7b", "q4_k_m", 1, (64,)),
    ("mixtral-tiny", "q5_k_m", 2, (9, 200)),
    ("qwen2.5-0.5b", "q8_0", 2, (9, 200)),
    ("qwen3-0.6b", "q6_k", 2, (9, 200)),
    ("gemma-3-270m", "hf", 6, (9, 600)),
)
NUM_NEW_TOKENS_SHAPED = 8
SCORED_PROMPTS = ("english", "python", "emoji", "one_token", "chat", "long")


# ---- GGUF to Hugging Face -------------------------------------------------------------------------------------------

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "ffn_gate_inp.weight": "block_sparse_moe.gate.weight",
}
EXPERT_NAMES = {"ffn_gate_exps.weight": "w1", "ffn_down_exps.weight": "w2", "ffn_up_exps.weight": "w3"}


def gguf_value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def hf_config_of(reader: gguf.GGUFReader, tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """The config.json that the GGUF file's metadata amounts to."""
    arch = gguf_value(reader, "general.architecture")

    def get(key: str, default: Any = None) -> Any:
        return gguf_value(reader, f"{arch}.{key}", default)

    heads = get("attention.head_count")
    config = {
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", get("embedding_length") // heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(get("rope.freq_base", 10000.0)),
        "vocab_size": len(tensors["token_embd.weight"]),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float32",
    }
    window = get("attention.sliding_window")
    if get("rope.scaling.type") == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": float(get("rope.scaling.factor"))}
    if arch == "llama" and get("expert_count"):
        config |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": window}
        config |= {"num_local_experts": get("expert_count"), "num_experts_per_tok": get("expert_used_count")}
    elif arch == "llama" and window:
        config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
    elif arch == "llama":
        config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    elif arch == "gemma3":
        config |= {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": window}
        config |= {"query_pre_attn_scalar": config["head_dim"], "rope_local_base_freq": 10000.0}
        config |= {"hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6}
        config["layer_types"] = [
            "full_attention" if i % 6 == 5 else "sliding_attention" for i in range(config["num_hidden_layers"])
        ]
    else:
        config |= {"model_type": arch, "architectures": [{"qwen2": "Qwen2", "qwen3": "Qwen3"}[arch] + "ForCausalLM"]}
    return config


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """From pairs side by side (2i, 2i+1) to pairs half a head apart, the order of Hugging Face files."""
    head_dim = len(weight) // num_heads
    return weight.reshape(num_heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def hf_tensors_of(config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    is_gemma = config["model_type"] == "gemma3_text"
    is_permuted = config["model_type"] in ("llama", "mistral", "mixtral")
    heads = {"attn_q.weight": config["num_attention_heads"], "attn_k.weight": config["num_key_value_heads"]}
    for name, value in tensors.items():
        weight = value - 1 if is_gemma and name.endswith("norm.weight") else value
        if name in OUTER_NAMES:
            yield OUTER_NAMES[name], weight
        elif name != "rope_freqs.weight":
            _, layer, part = name.split(".", 2)
            prefix = f"model.layers.{layer}."
            if part in EXPERT_NAMES:
                for expert, matrix in enumerate(weight):
                    yield f"{prefix}block_sparse_moe.experts.{expert}.{EXPERT_NAMES[part]}.weight", matrix
                continue
            if is_permuted and part in heads:
                weight = unpermute(weight, heads[part])
            hf = "pre_feedforward_layernorm.weight" if is_gemma and part == "ffn_norm.weight" else LAYER_NAMES[part]
            yield prefix + hf, weight


def convert_gguf(path: Path, folder: Path) -> np.ndarray | None:
    """Write the GGUF file as a Hugging Face checkpoint in float32; return its rotary frequency divisors, if any."""
    reader = gguf.GGUFReader(path)
    tensors = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(tensor.shape[::-1].tolist()))
        for tensor in reader.tensors
    }
    config = hf_config_of(reader, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    converted = {name: np.ascontiguousarray(weight, np.float32) for name, weight in hf_tensors_of(config, tensors)}
    save_file(converted, folder / "model.safetensors", {"format": "pt"})
    return tensors.get("rope_freqs.weight")


def load_reference(path: Path) -> torch.nn.Module:
    """The checkpoint as transformers computes it: eager attention, float32."""
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    if path.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()
    with tempfile.TemporaryDirectory() as folder:
        divisors = convert_gguf(path, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    if divisors is not None:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(divisors)
    return model


# ---- Running --------------------------------------------------------------------------------------------------------


def rounded(values: list[float]) -> list[float]:
    return [round(value, 5) for value in values]


@torch.no_grad()
def run_prompt(
    model: torch.nn.Module, prompt: list[int], *, is_scored: bool, num_tokens: int = NUM_NEW_TOKENS
) -> dict[str, Any]:
    """Greedy continuation past any end token, with log-probabilities and the best two logits' distance."""
    ids, past = torch.tensor([prompt]), None
    token_ids, logprobs, margins, scores = [], [], [], None
    for step in range(num_tokens):
        out = model(input_ids=ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits = out.logits[0].double()
        if step == 0 and is_scored:
            table = logits.log_softmax(-1)
            scores = rounded([float(table[i, token]) for i, token in enumerate(prompt[1:])])
        best = logits[-1].topk(2)
        token_ids.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        logprobs.append(float(logits[-1].log_softmax(-1)[token_ids[-1]]))
        ids = torch.tensor([token_ids[-1:]])
    case = {"prompt_token_ids": prompt, "token_ids": token_ids}
    case |= {"logprobs": rounded(logprobs), "margins": rounded(margins)}
    return case | ({"prompt_logprobs": scores} if is_scored else {})


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "gguf", "tokenizers", "numpy")}


def write_golden(name: str, content: dict[str, Any]) -> None:
    lines = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace('{"name":', '\n{"name":')
    (GOLDEN / f"{name}.json").write_text(lines + "\n")
    print(name, len(lines), "bytes")


def real_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """SmolLM2's: each digit alone, then GPT-2's word pattern, then byte-level merges; control tokens cut out first."""
    reader = gguf.GGUFReader(path)
    words = gguf_value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in gguf_value(reader, "tokenizer.ggml.merges")]
    kinds = gguf_value(reader, "tokenizer.ggml.token_type")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def make_real(path: Path) -> None:
    model, tokenizer = load_reference(path), real_tokenizer(path)
    prompts = json.loads((GOLDEN / "prompts.json").read_text())
    cases = []
    for name, text in prompts.items():
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"name": name} | run_prompt(model, prompt, is_scored=name in SCORED_PROMPTS))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    content = {"versions": versions(), "weights_sha256": digest, "tokenizer": real_tokenizer.__doc__, "cases": cases}
    write_golden("smollm2-135m-instruct", content)


@torch.no_grad()
def make_texts(path: Path) -> None:
    """Teacher-forced statistics of the public-domain texts: what each position expects, and how sure it is."""
    model, tokenizer = load_reference(path), real_tokenizer(path)
    texts = json.loads((GOLDEN / "public_domain.json").read_text())
    cases = []
    for name, text in texts.items():
        ids = tokenizer.encode(text["text"], add_special_tokens=False).ids
        table = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        best = table.topk(2)
        case = {"name": name, "prompt_token_ids": ids}
        case["prompt_logprobs"] = rounded([float(table[i, token]) for i, token in enumerate(ids[1:])])
        case["top_token_ids"] = best.indices[:, 0].tolist()
        case["margins"] = rounded((best.values[:, 0] - best.values[:, 1]).tolist())
        cases.append(case)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    write_golden("smollm2-135m-instruct-texts", {"versions": versions(), "weights_sha256": digest, "cases": cases})


def weights_digest(path: Path) -> str:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def make_random(like: str, weight_format: str, layers: int | None, lengths: tuple[int, ...], num_tokens: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        suffix = "" if weight_format.startswith("hf") else ".gguf"
        path = Path(folder) / f"model{suffix}"
        make_random_model(like, weight_format, path, layers=layers, seed=SEED)
        model, digest = load_reference(path), weights_digest(path)
    random = np.random.default_rng(SEED)
    cases = []
    for length in lengths:
        prompt = random.integers(0, model.config.vocab_size, length).tolist()
        case = run_prompt(model, prompt, is_scored=length == 40, num_tokens=num_tokens)
        cases.append({"name": f"random_{length}"} | case)
    content = {"versions": versions(), "like": like, "format": weight_format, "layers": layers, "seed": SEED}
    write_golden(f"{like}.{weight_format}", content | {"weights_sha256": digest, "cases": cases})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="the default model's file; without it only the random models")
    arguments = parser.parse_args()
    if arguments.gguf:
        make_real(arguments.gguf)
        make_texts(arguments.gguf)
    for like in TINY_MODELS:
        for weight_format in TINY_FORMATS:
            make_random(like, weight_format, None, TINY_PROMPT_LENGTHS, NUM_NEW_TOKENS)
    for like, weight_format, layers, lengths in SHAPED_MODELS:
        make_random(like, weight_format, layers, lengths, NUM_NEW_TOKENS_SHAPED)


if __name__ == "__main__":
    main()
