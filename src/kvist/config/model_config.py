"""Which model, from where, and under which names."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.config.option import option

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    model: str = option(
        DEFAULT_MODEL,
        help="catalogue name, path of a .gguf file or checkpoint folder, or Hugging Face id",
        aliases=("--model-path", "-m", "-hf"),
    )
    tokenizer: str | None = option(None, help="tokenizer.json or folder holding one, if not the model's own")
    chat_template: str | None = option(None, help="file with a Jinja chat template, if not the model's own")
    served_model_name: tuple[str, ...] = option(
        (), help="name(s) under which the API knows the model", aliases=("-a", "--alias")
    )
    revision: str | None = option(None, help="Hugging Face branch, tag or commit")
    max_model_len: int | None = option(
        None,
        help="longest prompt + output; default: what the model was trained for, or what fits the KV pool",
        aliases=("--context-length", "-c", "--ctx-size"),
        low=2,  # a prompt and an answer
        unit="tokens",
    )
    seed: int = option(0, help="seed for requests that bring none", low=0)
    generation_config: str = option(
        "auto", help="auto: sampling defaults of the model file; off: built-in defaults", choices=("auto", "off")
    )
