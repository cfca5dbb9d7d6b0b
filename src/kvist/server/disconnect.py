"""Stops work for a client that has left, or that has stopped reading."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class DisconnectGuard:
    """`async with DisconnectGuard(receive):` cancels its body when the peer goes; it then raises ClientDisconnect.

    The request's body must have been read to its end: nothing else may call `receive` meanwhile.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_left = False
        self._is_over = False

    async def __aenter__(self) -> DisconnectGuard:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._watcher.cancel()
        # A cancellation that came from elsewhere (the server is stopping) passes through as it is.
        if self._has_left and self._task.uncancel() == 0 and (kind is None or kind is asyncio.CancelledError):
            raise ClientDisconnect from None

    def give_up(self) -> None:
        """Treat the peer as gone."""
        if not self._is_over and not self._has_left:
            self._has_left = True
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.give_up()
