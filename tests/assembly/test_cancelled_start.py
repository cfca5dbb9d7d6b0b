"""A start that is called off does not go on behind one's back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kvist.assembly import start_engine as start_engine_module
from kvist.assembly.start_engine import start_engine
from kvist.config.engine_config import EngineConfig
from kvist.core.errors import DownloadError


def test_calling_off_a_start_ends_its_download(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    def endless_download(name: str, *, revision: str | None, progress: object) -> None:
        try:
            while True:
                progress(name, 1, 100)
                began.set()
        except DownloadError:
            ended.set()
            raise

    monkeypatch.setattr(start_engine_module, "resolve_model", endless_download)

    async def start_and_call_off() -> None:
        starting = asyncio.create_task(start_engine(EngineConfig(), engine_client="thread"))
        await asyncio.to_thread(began.wait, 100)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_call_off())
    assert ended.wait(100)
