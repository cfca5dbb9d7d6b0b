"""The request bodies that kvist understands: OpenAI's fields and the extra ones that users of vLLM know.

A field that is absent or null keeps its default here. Defaults of sampling are not decided here but in
`sampling_options`, which knows the model's own. Fields named in UNSERVED are refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

TextOrTokens = str | list[Any]  # Any: list[str], list[int] or list[list[int]]; checked by prompt_encoding.parse_prompts
Message = dict[str, Any]  # Any: checked by the chat template


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(msgspec.Struct, kw_only=True):
    """What completions and chat have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool = False
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    skip_reading_prefix_cache: bool = False
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    deadline_ms: float | None = None
    # Labels for the caller's own bookkeeping; they change nothing that a server could do otherwise.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/completions."""

    prompt: TextOrTokens
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: text or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


# Known fields of things not served, and the values that ask for nothing and so may be sent.
UNSERVED: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "modalities": (["text"],),
    "audio": (),
    "images": ([],),
    "mm_processor_kwargs": (),
    "lora_path": (),
    "lora_request": (),
    "adapter_id": (),
    "speculative_config": (),
    "kv_transfer_params": (),
    "disaggregated_params": (),
    "prediction": (),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "include_reasoning": (False,),
    "thinking_token_budget": (),
    "thinking": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "bad_words": ([],),
    "logits_processors": ([],),
    "spaces_between_special_tokens": (True,),
    "prompt_embeds": (),
    "documents": (),
    "chat_template": (),
    "mcp_servers": (),
    "vllm_xargs": ({},),
    "session_id": (),
    "session_params": (),
    "cache_control": (),
    "prompt_cache_key": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "repetition_detection": (),
}
