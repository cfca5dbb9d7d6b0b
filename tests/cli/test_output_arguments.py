"""What every measuring command writes and where."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import pytest

from kvist.cli.main import COMMANDS
from kvist.cli.output_arguments import add_output_arguments, check_output_files, result_document, write_json
from kvist.config.arguments import ArgumentParser
from kvist.core.errors import ConfigError, KvistError
from kvist.report.written_file import whole_file, write_whole


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_output_arguments(parser)
    return parser.parse_args(words)


def test_a_result_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, result_document("what", {"rows": [1], "date": "as given"}, repeats=3))
    document = json.loads(path.read_text())
    assert {"command", "commit", "machine"} <= set(document)
    assert (document["name"], document["repeats"], document["rows"], document["date"]) == ("what", 3, [1], "as given")
    assert {"cpu", "num_cores_granted", "isa", "load_average_1_min"} <= set(document["machine"])


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.split()[0] in ("bench", "repro")])
def test_every_measuring_command_takes_the_same_four_flags(name: str) -> None:
    parser = ArgumentParser(prog=name)
    importlib.import_module(COMMANDS[name].module).add_arguments(parser)
    actions = {flag: action for action in parser._actions for flag in action.option_strings}
    assert (actions["--json"].type, actions["--report"].type, actions["--quick"].nargs) == (Path, Path, 0)
    assert actions["--model"].nargs != 0


@pytest.mark.parametrize("flag", ["--json", "--report"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(flag: str, tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "none" / "file"):
        with pytest.raises(ConfigError, match=flag):
            check_output_files(parse(flag, str(bad)))
    check_output_files(parse(flag, str(tmp_path / "file")))
    check_output_files(parse())


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"x": float("nan")})
    with pytest.raises(KvistError, match="cannot write /dev/full: No space left"):
        write_whole(Path("/dev/full"), "x" * 100_000)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_written_piece_by_piece_is_there_as_a_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")

    def interrupted() -> None:
        with whole_file(path) as file:
            file.write("half")
            raise ValueError("interrupted")

    with pytest.raises(ValueError, match="interrupted"):
        interrupted()
    assert path.read_text() == "before"
    with whole_file(path) as file:
        file.write("one, ")
        file.write("two")
    assert path.read_text() == "one, two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_to_a_result_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "r.json")
    write_whole(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "r.json").read_text() == "x"
