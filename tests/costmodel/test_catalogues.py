"""Names are read as people write them, and shapes are those of the published models."""

from __future__ import annotations

import pytest

from kvist.core.errors import ConfigError
from kvist.costmodel.device_catalogue import DEVICES, find_device
from kvist.costmodel.engine_generation import engine_generation
from kvist.costmodel.model_catalogue import MODELS, find_model_spec
from kvist.costmodel.number_format import find_format, product_peak


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74), ("llama-2-70b", 68.98), ("llama-3.1-8b", 8.03), ("llama-3.1-405b", 405.85),
        ("mixtral-8x7b", 46.7), ("qwen2.5-72b", 72.7), ("qwen3-30b-a3b", 30.5), ("opt-175b", 174.6), ("yi-34b", 34.4),
        ("smollm2-135m", 0.1345),
    ],
)  # fmt: skip
def test_the_catalogue_has_as_many_parameters_as_the_model(name: str, billions: float) -> None:
    assert MODELS[name].num_parameters == pytest.approx(billions * 1e9, rel=3e-3)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b"),
        ("Llama-2-70b-hf", "llama-2-70b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("OPT-13B", "opt-13b"),
        ("Meta-Llama-3-70B", "llama-3-70b"),
    ],
)
def test_models_are_found_by_the_names_people_write(written: str, meant: str) -> None:
    assert find_model_spec(written) is MODELS[meant]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("A100-80GB-PCIe (NVLink pair)", "A100-80GB-PCIe"),
        ("h100_sxm", "H100-80GB-SXM"),
        ("NVIDIA H200", "H200-141GB-SXM"),
        ("a100", "A100-80GB-SXM"),
        ("RTX 4090", "RTX-4090"),
    ],
)
def test_devices_are_found_by_the_names_people_write(written: str, meant: str) -> None:
    assert find_device(written) is DEVICES[meant]


def test_an_unknown_name_says_what_there_is_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean"):
        find_device("H10O-80GB-SXM")
    with pytest.raises(ConfigError, match=r"Did you mean llama-3\.1-70b"):
        find_model_spec("llama-3.1-70")


@pytest.mark.parametrize(
    ("phrase", "name"), [("fp16/bf16", "fp16"), ("not stated (bf16 likely)", "bf16"), ("FP8", "fp8"), ("awq", "int4")]
)
def test_formats_are_found_in_phrases(phrase: str, name: str) -> None:
    assert find_format(phrase).name == name


def test_a_format_without_products_of_its_own_computes_in_bf16() -> None:
    assert product_peak(find_format("fp8"), find_device("a100")) == find_device("a100").peak("bf16")
    assert product_peak(find_format("fp8"), find_device("h100")) == find_device("h100").peak("fp8")


def test_versions_of_an_engine_fall_into_generations() -> None:
    names = ["vLLM 0.15.1", "vllm 0.12.0", "vllm", "vLLM (late 2024)", "trtllm 1.0.0rc3", "LMDeploy TurboMind v0.1.0a1"]
    assert [engine_generation(name) for name in names] == [
        "vllm-0.15", "vllm-0.12", "vllm-2025", "vllm-2024", "trtllm-2025", "turbomind-2023"
    ]  # fmt: skip
