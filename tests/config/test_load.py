"""Configuration from command line, file and environment: precedence, refusals, round trips."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.config.arguments import ArgumentParser, add_config_arguments, to_command_line
from kvist.config.fields import ConfigField, config_fields
from kvist.config.foreign_flags import FOREIGN_FLAGS
from kvist.config.load import (
    ENGINE_SECTIONS,
    SERVE_SECTIONS,
    engine_config,
    engine_config_from_keywords,
    load_configs,
    read_config_file,
)
from kvist.config.speculation_config import SpeculationConfig
from kvist.config.toml_text import to_toml
from kvist.core.errors import ConfigError

ALL_FIELDS = [field for section, cls in SERVE_SECTIONS.items() for field in config_fields(cls, section)]
SIZES = ("kv_cache_bytes", "num_blocks", "max_total_tokens")
SPECULATION = (  # what goes together
    {f.name: f.default for f in config_fields(SpeculationConfig, "speculation")} | {"max_steps_in_flight": 2},
    {"speculative_method": "ngram", "speculative_model": None, "max_steps_in_flight": 1, "prompt_lookup_min": 1},
    {"speculative_method": "draft_model", "speculative_model": "small one", "max_steps_in_flight": 1},
)


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVIST_API_KEY", raising=False)


def parse(*words: str) -> argparse.Namespace:
    parser = ArgumentParser(prog="kvist serve")
    parser.add_argument("model_argument", nargs="?")
    parser.add_argument("--config")
    add_config_arguments(parser, SERVE_SECTIONS)
    return parser.parse_known(words)


def load(*words: str) -> dict[str, Any]:
    return load_configs(parse(*words), SERVE_SECTIONS)


def values_of(field: ConfigField) -> st.SearchStrategy[Any]:
    low, high, choices = field.option.low, field.option.high, field.option.choices
    text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0,"), min_size=1).map(str.strip)
    text = text.filter(bool)
    one: st.SearchStrategy[Any]
    if field.name == "block_size":
        one = st.integers(1, 64).map(lambda n: 16 * n)
    elif choices:
        one = st.sampled_from(list(choices))
    elif field.kind is bool:
        one = st.booleans()
    elif field.kind is int:
        one = st.integers(int(low or 0), int(high) if high is not None else 2**40)
    elif field.kind is float:
        one = st.floats(low or 0.0, high or 1e9, allow_nan=False)
    else:
        one = text
    if field.is_repeated:
        return st.lists(one, max_size=3).map(tuple)
    return st.one_of(st.none(), one) if field.is_optional else one


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.sampled_from(SIZES))
    tls = draw(st.booleans())
    given_together = {"prompt_lookup_min": 1, **draw(st.sampled_from(SPECULATION))}
    configs = {}
    for section, config_class in SERVE_SECTIONS.items():
        values = {}
        for field in config_fields(config_class, section):
            if (field.name in SIZES and field.name != size) or (field.name.startswith("ssl_") and not tls):
                continue
            value = given_together[field.name] if field.name in given_together else draw(values_of(field))
            values[field.name] = "file" if field.name.startswith("ssl_") else value
        configs[section] = config_class(**values)
    return configs


@settings(max_examples=60, deadline=None)
@given(configurations())
def test_a_command_line_round_trips(configs: dict[str, Any]) -> None:
    assert load(*to_command_line(configs)) == configs


@settings(max_examples=60, deadline=None)
@given(configurations())
def test_a_file_round_trips(tmp_path_factory: pytest.TempPathFactory, configs: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("config") / "kvist.toml"
    path.write_text(to_toml(configs), encoding="utf-8")
    assert load("--config", str(path)) == configs


def test_defaults_are_the_dataclasses_own() -> None:
    assert load() == {section: cls() for section, cls in SERVE_SECTIONS.items()}


def test_command_line_wins_over_file_over_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kvist.toml"
    path.write_text('[server]\nport = 1\nhost = "::1"\napi_key = ["from-file"]\n')
    monkeypatch.setenv("KVIST_API_KEY", "from-environment")
    assert load()["server"].api_key == ("from-environment",)
    assert load("--config", str(path))["server"].api_key == ("from-file",)
    server = load("--config", str(path), "--port", "2", "--api-key", "a,b", "--api-key", "c")["server"]
    assert (server.port, server.host, server.api_key) == (2, "::1", ("a", "b", "c"))


def test_one_file_serves_commands_with_fewer_sections(tmp_path: Path) -> None:
    path = tmp_path / "kvist.toml"
    path.write_text("[server]\nport = 1\n[cache]\nblock_size = 32\n")
    configs = load_configs(parse("--config", str(path)), ENGINE_SECTIONS)
    assert engine_config(configs).cache.block_size == 32


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("2k", 2048), ("1.5M", 3 << 19), ("2G", 2 << 30), ("1GiB", 1 << 30), ("1MB", 10**6)],
)
def test_sizes_take_suffixes(text: str, size: int, tmp_path: Path) -> None:
    assert load("--kv-cache-bytes", text)["cache"].kv_cache_bytes == size
    path = tmp_path / "kvist.toml"
    path.write_text(f'[cache]\nkv_cache_bytes = "{text}"\n')
    assert load("--config", str(path))["cache"].kv_cache_bytes == size


@pytest.mark.parametrize(
    ("words", "section", "name", "value"),
    [
        (["some/model"], "model", "model", "some/model"),
        (["-m", "x.gguf"], "model", "model", "x.gguf"),
        (["--model-path", "x"], "model", "model", "x"),
        (["-c", "512"], "model", "max_model_len", 512),
        (["--context-length", "512"], "model", "max_model_len", 512),
        (["--page-size", "32"], "cache", "block_size", 32),
        (["--disable-radix-cache"], "cache", "enable_prefix_caching", False),
        (["--no-enable-prefix-caching"], "cache", "enable_prefix_caching", False),
        (["-np", "4"], "scheduler", "max_num_seqs", 4),
        (["--chunked-prefill-size", "64"], "scheduler", "max_num_batched_tokens", 64),
        (["--schedule-policy", "lpm"], "scheduler", "queue_order", "lpm"),
        (["--policy", "chunked-prefill"], "scheduler", "policy", "chunked_prefill"),
        (["-a", "x"], "model", "served_model_name", ("x",)),
        (["-t", "3"], "executor", "num_threads", 3),
    ],
)
def test_spellings_of_other_engines_work(words: list[str], section: str, name: str, value: object) -> None:
    assert getattr(load(*words)[section], name) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-num-seq", "4"], "Did you mean --max-num-seqs?"),
        (["--prot", "80"], "unknown option --prot"),
        (["--max-num-seqs", "many"], "whole number"),
        (["--max-num-seqs", "0"], "at least 1"),
        (["--port", "70000"], "at most 65535"),
        (["--seed", str(2**63)], "at most 9223372036854775807"),
        (["--max-num-seqs", "9" * 30], "at most 9223372036854775807"),
        (["--num-threads", "100000"], "at most 1024"),
        (["--shutdown-timeout", "nan"], "finite"),
        (["--policy", "chunked_prefil"], "Did you mean chunked_prefill?"),
        (["--kv-cache-bytes", "lots"], "512M"),
        (["--kv-cache-bytes", "1e999G"], "512M"),
        (["--block-size", "24"], "multiple of 16"),
        (["--num-blocks", "8", "--kv-cache-bytes", "1M"], "--kv-cache-bytes and --num-blocks"),
        (["--ssl-keyfile", "k"], "--ssl-certfile"),
        (["a", "--model", "b"], "two models"),
        (["a", "b"], "unexpected argument"),
        (["--port"], "expected one argument"),
        (["--config", "/nowhere/kvist.toml"], "No such file"),
        (["-tp", "2"], "-tp 2 is not available"),
        (["--speculative-config", "[]"], "must be an object"),
        (["--speculative-config", "{"], "JSON"),
        (["--speculative-config", '{"num_speculative_token": 3}'], "Did you mean num_speculative_tokens?"),
        (["--speculative-config", '{"method": "eagle"}'], "must be one of none, ngram, draft_model"),
        (["--speculative-method", "draft_model"], "needs --speculative-model"),
        (["--speculative-method", "ngram", "-md", "small"], "give one"),
        (["--prompt-lookup-min", "9"], "larger than --prompt-lookup-max 8"),
        (["--prompt-lookup-min", "3"], "--prompt-lookup-min has no effect while speculation is off"),
        (["--speculative-config", '{"num_speculative_tokens": 3}'], "no effect while speculation is off"),
        (["--speculative-method", "ngram", "--max-steps-in-flight", "2"], "one step at a time"),
        (["--speculative-algorithm", "EAGLE"], "--speculative-method ngram"),
        (["--enable-lora"], "LoRA"),
        (["--quantization", "awq"], "model file"),
        (["--gpu-memory-utilization=0.9"], "--kv-cache-bytes"),
    ],
)
def test_bad_flags_are_refused_with_a_reason(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "words", [["-tp", "1"], ["--tensor-parallel-size=1"], ["--dtype", "auto"], ["--enforce-eager"]]
)
def test_flags_that_ask_for_what_kvist_does_anyway_are_accepted(words: list[str]) -> None:
    assert load(*words) == load()


def test_an_accepted_foreign_flag_leaves_the_model_alone() -> None:
    assert load("--enable-metrics", "x.gguf")["model"].model == "x.gguf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cache]\nblock_sise = 16\n", "Did you mean block_size?"),
        ("[cash]\n", "Did you mean cache?"),
        ("port = 1\n", "unknown section"),
        ("cache = 1\n", "must be a table"),
        ("[server]\nport = '80'\n", "whole number"),
        ("[server]\nport = true\n", "whole number"),
        ("[server]\nlenient = 1\n", "true or false"),
        ("[server]\nallowed_origins = [1]\n", "string"),
        ("[server]\nallowed_origins = 1\n", "list of strings"),
        ("[server\n", "not valid TOML"),
    ],
)
def test_bad_files_are_refused_with_a_reason(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "kvist.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert message in str(caught.value)


def test_keywords_build_an_engine_configuration() -> None:
    config = engine_config_from_keywords({"model": "x", "max_num_seqs": 8, "num_blocks": 64})
    assert (config.model.model, config.scheduler.max_num_seqs, config.cache.num_blocks) == ("x", 8, 64)
    with pytest.raises(ConfigError, match="Did you mean max_num_seqs"):
        engine_config_from_keywords({"max_num_seq": 8})
    with pytest.raises(ConfigError, match=r"^max_num_seqs must be at least 1"):
        engine_config_from_keywords({"max_num_seqs": 0})


def test_no_two_options_share_a_name_or_a_spelling() -> None:
    names = [field.name for field in ALL_FIELDS]
    spellings = [s for f in ALL_FIELDS for s in (f.flag, *f.option.aliases, *f.option.off_aliases)]
    spellings += [s for foreign in FOREIGN_FLAGS for s in foreign.spellings]
    assert len(names) == len(set(names))
    assert len(spellings) == len(set(spellings))


def test_every_option_says_what_it_does() -> None:
    for field in ALL_FIELDS:
        assert len(field.option.help) > 10, field.name
        assert dataclasses.is_dataclass(SERVE_SECTIONS[field.section])


@pytest.mark.parametrize(
    ("text", "method", "model", "num_tokens"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}', "ngram", None, 5),
        ('{"model": "[ngram]", "num_speculative_tokens": 3}', "ngram", None, 3),
        ('{"model": "small-one"}', "none", "small-one", 6),
        ("{}", "none", None, 6),
    ],
)
def test_speculation_may_be_given_as_one_object(text: str, method: str, model: str | None, num_tokens: int) -> None:
    speculation = load("--speculative-config", text)["speculation"]
    assert (speculation.speculative_method, speculation.speculative_model) == (method, model)
    assert speculation.num_speculative_tokens == num_tokens
    assert speculation.is_on == (text != "{}")
    assert engine_config_from_keywords({"speculative_config": json.loads(text)}).speculation == speculation
