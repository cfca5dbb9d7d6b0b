"""The flags that say what runs where, for the commands that predict instead of running."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from kvist.config.arguments import whole_number
from kvist.core.errors import ConfigError
from kvist.core.model_spec import ModelSpec
from kvist.costmodel.calibration import Calibration, parse_calibration
from kvist.costmodel.device_catalogue import DEVICES, find_device
from kvist.costmodel.engine_generation import CURRENT
from kvist.costmodel.model_catalogue import find_model_spec
from kvist.costmodel.model_size import count_parameters
from kvist.costmodel.number_format import FORMATS, find_format, kv_element_bytes
from kvist.costmodel.roofline import Placement

DEFAULT_MODEL, DEFAULT_DEVICE = "llama-3.1-8b", "H100-80GB-SXM"


def add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Add model, device, split, number formats, engine and calibration file."""
    group = parser.add_argument_group("what runs where")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help=f"a name such as llama-3.1-70b, a config.json, a checkpoint folder or a .gguf file ({DEFAULT_MODEL})",
    )
    group.add_argument(
        "--device", default=DEFAULT_DEVICE, metavar="DEVICE", help=f"one of {', '.join(DEVICES)} ({DEFAULT_DEVICE})"
    )
    for flags, what in (
        (("--tp", "--tensor-parallel-size"), "devices that share each layer (1)"),
        (("--pp", "--pipeline-parallel-size"), "stages that share the layers (1)"),
    ):
        group.add_argument(*flags, type=whole_number(flags[0], low=1), default=1, metavar="N", help=what)
    group.add_argument("--dtype", default="bf16", metavar="FORMAT", help=f"of weights: {', '.join(FORMATS)} (bf16)")
    group.add_argument("--kv-cache-dtype", metavar="FORMAT", help="of keys and values (as the engine keeps them)")
    group.add_argument(
        "--engine", default=CURRENT, metavar="NAME", help=f"engine and version as it was measured ({CURRENT})"
    )
    group.add_argument("--calibration", type=Path, metavar="FILE", help="from kvist calibrate (default: kvist's own)")


def chosen_placement(arguments: argparse.Namespace) -> Placement:
    """What the flags say. Raises ConfigError, or CheckpointError for a damaged file."""
    return Placement(
        model=read_model_spec(arguments.model),
        device=find_device(arguments.device),
        number_format=find_format(arguments.dtype),
        tensor_parallel_size=arguments.tp,
        pipeline_parallel_size=arguments.pp,
        kv_element_bytes=kv_element_bytes(arguments.kv_cache_dtype),
    )


def chosen_calibration(arguments: argparse.Namespace) -> Calibration | None:
    """The file's; None without one."""
    return None if arguments.calibration is None else read_calibration(arguments.calibration)


def read_calibration(path: Path) -> Calibration:
    """Raises ConfigError if it cannot be read or is none."""
    try:
        return parse_calibration(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read the calibration {path}: {error.strerror}") from error


def read_model_spec(name: str) -> ModelSpec:
    """The shape of a model: of a file or folder if there is one of that name, else of the catalogue."""
    path = Path(name)
    if not path.exists():
        return find_model_spec(name)
    # Here, because a catalogue name needs no code that reads files.
    from kvist.models.registry import find_architecture
    from kvist.weights.checkpoint import open_checkpoint
    from kvist.weights.config_only import open_config

    is_config = path.suffix == ".json" or (path / "config.json").is_file()
    checkpoint = open_config(path) if is_config else open_checkpoint(path)
    spec = find_architecture(checkpoint).parse_spec(checkpoint)
    return replace(spec, num_parameters=count_parameters(spec))
