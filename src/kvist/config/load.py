"""Puts a configuration together: command line over file over environment over default.

The only place, with cache_folder, that reads the environment.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvist.config.arguments import given_values
from kvist.config.cache_config import CacheConfig
from kvist.config.engine_config import EngineConfig, ExecutorConfig
from kvist.config.fields import Value, build_config, config_fields
from kvist.config.model_config import ModelConfig
from kvist.config.scheduler_config import SchedulerConfig
from kvist.config.server_config import ServerConfig
from kvist.config.speculation_config import SpeculationConfig
from kvist.config.speculative_json import speculation_values
from kvist.config.trace_config import TraceConfig
from kvist.core.errors import ConfigError
from kvist.core.suggest import did_you_mean

ENGINE_SECTIONS: Mapping[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "executor": ExecutorConfig,
    "speculation": SpeculationConfig,
    "trace": TraceConfig,
}
SERVE_SECTIONS: Mapping[str, type] = {**ENGINE_SECTIONS, "server": ServerConfig}

Values = dict[str, dict[str, Value]]  # section -> name -> value


def load_configs(arguments: argparse.Namespace, sections: Mapping[str, type]) -> dict[str, Any]:
    """Section -> configuration. `arguments.config` names the file, `arguments.model_argument` the positional MODEL.

    A file may hold more sections than asked for (one file serves all commands); all of it is checked.
    Any: each value is an instance of its section's dataclass.
    """
    given = given_values(arguments, sections)
    if getattr(arguments, "model_argument", None) is not None:
        if given["model"].get("model", arguments.model_argument) != arguments.model_argument:
            raise ConfigError(
                f"two models are named: {arguments.model_argument} and --model {given['model']['model']}. Give one."
            )
        given["model"]["model"] = arguments.model_argument
    from_file = read_config_file(Path(arguments.config)) if getattr(arguments, "config", None) else {}
    from_environment = _environment_values()
    configs: dict[str, Any] = {}
    for section, config_class in sections.items():
        merged = {**from_environment.get(section, {}), **from_file.get(section, {}), **given[section]}
        configs[section] = build_config(config_class, section, merged, source=f"[{section}]")
    _check_combinations(configs)
    if "speculation" in configs:
        _check_use(configs["speculation"], given["speculation"], from_file.get("speculation", {}))
    return configs


def engine_config(configs: Mapping[str, Any]) -> EngineConfig:
    """Gather the engine's sections, as `load_configs` returns them."""
    return EngineConfig(
        model=configs["model"],
        cache=configs["cache"],
        scheduler=configs["scheduler"],
        executor=configs["executor"],
        speculation=configs["speculation"],
        trace=configs["trace"],
    )


def engine_config_from_keywords(keywords: Mapping[str, Value]) -> EngineConfig:
    """The configuration that keyword arguments ask for, as in `LLM(model, max_num_seqs=8)`.

    Raises ConfigError for unknown names, naming the nearest, and for bad values and combinations.
    """
    section_of = {
        field.name: section for section, cls in ENGINE_SECTIONS.items() for field in config_fields(cls, section)
    }
    values: Values = {section: {} for section in ENGINE_SECTIONS}
    for name, value in keywords.items():
        if name == "speculative_config":
            values["speculation"] |= speculation_values(value, source=name)
            continue
        if name not in section_of:
            raise ConfigError(f"unknown option {name!r}.{did_you_mean(name, section_of)}")
        values[section_of[name]][name] = value
    configs: dict[str, Any] = {
        section: build_config(cls, section, values[section], source="") for section, cls in ENGINE_SECTIONS.items()
    }
    _check_combinations(configs)
    return engine_config(configs)


def read_config_file(path: Path) -> Values:
    """Read a TOML file whose tables are sections and whose keys are option names. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from error
    for section, values in tables.items():
        if section not in SERVE_SECTIONS:
            known = ", ".join(SERVE_SECTIONS)
            hint = did_you_mean(section, SERVE_SECTIONS)
            raise ConfigError(f"{path}: unknown section [{section}]; sections are {known}.{hint}")
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: {section} must be a table: write [{section}] and its options below")
        build_config(SERVE_SECTIONS[section], section, values, source=f"{path}: [{section}]")
    return tables


def is_debugging() -> bool:
    """Whether the user wants tracebacks: KVIST_DEBUG is set and not 0."""
    return os.environ.get("KVIST_DEBUG", "0") not in ("", "0")


def environment_api_keys() -> tuple[str, ...]:
    """The keys in KVIST_API_KEY, which may hold several with commas between them."""
    return tuple(part.strip() for part in os.environ.get("KVIST_API_KEY", "").split(",") if part.strip())


def _environment_values() -> Values:
    keys = environment_api_keys()
    return {"server": {"api_key": keys}} if keys else {}


def _check_combinations(configs: Mapping[str, Any]) -> None:
    cache: CacheConfig = configs["cache"]
    sizes = [name for name in ("kv_cache_bytes", "num_blocks", "max_total_tokens") if getattr(cache, name) is not None]
    if len(sizes) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in sizes)
        raise ConfigError(f"{flags} both size the KV pool; give one of them")
    if cache.block_size % 16:
        raise ConfigError(f"--block-size must be a multiple of 16, not {cache.block_size}")
    if "speculation" in configs:
        _check_speculation(configs["speculation"], configs["scheduler"])
    server: ServerConfig | None = configs.get("server")
    if server and (server.ssl_keyfile is None) != (server.ssl_certfile is None):
        raise ConfigError("TLS needs both --ssl-keyfile and --ssl-certfile; only one is given")


def _check_use(speculation: SpeculationConfig, given: Mapping[str, Value], from_file: Mapping[str, Value]) -> None:
    """Raise ConfigError for flags that tune speculation where nothing switches it on, unless it is off on purpose."""
    if given and not speculation.is_on and "speculative_method" not in {*given, *from_file}:
        flag = "--" + next(iter(given)).replace("_", "-")
        raise ConfigError(
            f"{flag} has no effect while speculation is off; "
            "add --speculative-method ngram or --speculative-model MODEL"
        )


def _check_speculation(speculation: SpeculationConfig, scheduler: SchedulerConfig) -> None:
    if speculation.speculative_method == "draft_model" and speculation.speculative_model is None:
        raise ConfigError("--speculative-method draft_model needs --speculative-model")
    if speculation.speculative_method == "ngram" and speculation.speculative_model is not None:
        raise ConfigError(
            "--speculative-method ngram and --speculative-model both say where drafts come from; give one"
        )
    if speculation.prompt_lookup_min > speculation.prompt_lookup_max:
        raise ConfigError(
            f"--prompt-lookup-min {speculation.prompt_lookup_min} is larger than "
            f"--prompt-lookup-max {speculation.prompt_lookup_max}"
        )
    if speculation.is_on and scheduler.max_steps_in_flight > 1:
        raise ConfigError("speculation runs one step at a time; leave --max-steps-in-flight at 1")
