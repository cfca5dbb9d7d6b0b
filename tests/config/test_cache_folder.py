from pathlib import Path

import pytest

from kvist.config.cache_folder import cache_folder
from kvist.core.errors import ConfigError


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"KVIST_CACHE": "/big/disk", "XDG_CACHE_HOME": "/xdg"}, Path("/big/disk")),
        ({"KVIST_CACHE": "", "XDG_CACHE_HOME": "/xdg"}, Path("/xdg/kvist")),
        ({"XDG_CACHE_HOME": "relative"}, Path("/home/user/.cache/kvist")),
        ({}, Path("/home/user/.cache/kvist")),
    ],
)
def test_the_cache_folder_is_the_users_choice_or_theirs_by_custom(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: Path
) -> None:
    for name in ("KVIST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/user"} | environment).items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == expected


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("KVIST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="KVIST_CACHE"):
        cache_folder()
