"""In processes of their own, because the hub's client reads HF_ENDPOINT and HF_HOME when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.hub import COMMIT, FakeHub, fake_hub

from kvist.weights.checkpoint import open_checkpoint
from kvist.weights.hub_reference import parse_hub_reference
from kvist.weights.random_model import make_random_model

_RESOLVE = """
import json, sys
from pathlib import Path
from kvist.core.errors import KvistError
from kvist.weights.fetch import resolve_model
for model in sys.argv[2:]:
    reports = []
    try:
        path = resolve_model(model, cache=Path(sys.argv[1]), progress=lambda *report: reports.append(report))
        print(json.dumps({"path": str(path), "last": reports[-1:]}))
    except KvistError as error:
        print(json.dumps({"error": str(error)}))
"""

Resolve = Callable[..., list[dict]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as hub:
        yield hub


@pytest.fixture
def resolve(hub: FakeHub, tmp_path: Path) -> Resolve:
    """Resolve models in one new process, with the fake hub and caches in tmp_path."""

    def run(*models: str) -> list[dict]:
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | own
        command = [sys.executable, "-c", _RESOLVE, str(tmp_path / "cache"), *models]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def _repository(folder: Path) -> dict[str, bytes]:
    make_random_model("tiny-llama", "hf", folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_checkpoint_is_fetched_once_and_then_found_without_the_hub(
    hub: FakeHub, resolve: Resolve, tmp_path: Path
) -> None:
    files = _repository(tmp_path / "original")
    junk = {"pytorch_model.bin": b"x", "consolidated.safetensors": b"x", "onnx/model.onnx": b"x", "README.md": b"x"}
    hub.repositories["org/tiny"] = files | junk

    (first,) = resolve("org/tiny")

    folder = Path(first["path"])
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
    assert open_checkpoint(folder).num_parameters == open_checkpoint(tmp_path / "original").num_parameters
    num_bytes = sum(map(len, files.values()))
    assert first["last"] == [["org/tiny", num_bytes, num_bytes]]

    hub.requests.clear()
    assert resolve("org/tiny") == [{"path": first["path"], "last": []}]
    assert hub.requests == []


@pytest.mark.slow
def test_a_download_that_breaks_off_goes_on_where_it_ended(hub: FakeHub, resolve: Resolve) -> None:
    # The hub's client keeps what it has of a file in pieces of about 10 MB.
    weights = bytes(range(256)) * 100_000
    hub.repositories["org/large"] = {"config.json": b"{}", "model.safetensors": weights}
    hub.break_off.add("model.safetensors")

    (done,) = resolve("org/large")

    assert (Path(done["path"]) / "model.safetensors").read_bytes() == weights
    ranges = [header for method, path, header in hub.requests if method == "GET" and path.endswith("model.safetensors")]
    assert len(ranges) == 2
    assert ranges[0] is None
    assert int(ranges[1].removeprefix("bytes=").removesuffix("-")) >= 10_000_000


def test_a_sharded_checkpoint_takes_the_files_of_its_index(hub: FakeHub, resolve: Resolve) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    hub.repositories["org/sharded"] = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": b"1",
        "model-2.safetensors": b"2",
        "consolidated.safetensors": b"3",
    }
    (done,) = resolve("org/sharded")
    names = {file.name for file in Path(done["path"]).iterdir()}
    assert names == set(hub.repositories["org/sharded"]) - {"consolidated.safetensors"}


def test_gguf_files_are_chosen_by_quantization_or_by_name(hub: FakeHub, resolve: Resolve) -> None:
    hub.repositories["org/m-GGUF"] = {
        "m-Q4_K_M.gguf": b"q4km",
        "m-Q4_K_S.gguf": b"q4ks",
        "mmproj-Q8_0.gguf": b"vision",
        "Q8_0/m-Q8_0-00001-of-00002.gguf": b"one",
        "Q8_0/m-Q8_0-00002-of-00002.gguf": b"two",
    }
    hub.repositories["org/single-GGUF"] = {"only.gguf": b"only"}

    by_quant, by_name, split, single, none, unclear = resolve(
        "org/m-GGUF:q4_k_m", "org/m-GGUF/m-Q4_K_S.gguf", "org/m-GGUF:Q8_0", "org/single-GGUF", "org/m-GGUF:Q5_K",
        "org/m-GGUF",
    )  # fmt: skip

    assert Path(by_quant["path"]).read_bytes() == b"q4km"
    assert Path(by_name["path"]).read_bytes() == b"q4ks"
    assert Path(split["path"]).name == "m-Q8_0-00001-of-00002.gguf"
    assert Path(split["path"]).with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == b"two"
    assert Path(single["path"]).read_bytes() == b"only"
    assert "no file fits; it has Q8_0/m-Q8_0-00001-of-00002.gguf, m-Q4_K_M.gguf, m-Q4_K_S.gguf" in none["error"]
    assert "more than one file fits" in unclear["error"]


def test_what_the_hub_refuses_is_said_in_one_sentence(hub: FakeHub, resolve: Resolve) -> None:
    hub.repositories["org/gated"] = {"config.json": b"{}", "model.safetensors": b"x"}
    hub.repositories["org/torch-only"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    hub.gated.add("org/gated")

    missing, gated, torch_only = resolve("org/misspelt", "org/gated", "org/torch-only")

    assert missing["error"].startswith("the hub has no org/misspelt: misspelt, or private")
    assert "accept its terms" in gated["error"]
    assert "it has no GGUF file" in torch_only["error"]


def test_an_unreachable_hub_is_reported(hub: FakeHub, resolve: Resolve) -> None:
    hub.url = "http://127.0.0.1:1"
    (refused,) = resolve("org/any")
    assert refused["error"].startswith("cannot fetch org/any: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", ("org/repo", None, None)),
        ("org/repo.v2:Q4_K_M", ("org/repo.v2", "Q4_K_M", None)),
        ("org/repo/sub/file-x.gguf", ("org/repo", None, "sub/file-x.gguf")),
        ("org/repo/other.bin", None),
        ("repo", None),
        ("org/../repo", None),
        ("org/repo/../../x.gguf", None),
        ("http://host/x", None),
        ("org/repo\n", None),
    ],
)
def test_hub_ids_are_told_from_other_names(text: str, expected: tuple | None) -> None:
    reference = parse_hub_reference(text, COMMIT)
    assert (None if reference is None else (reference.repo_id, reference.quant, reference.file)) == expected
