"""Starts engine processes. Imports nothing of an engine: a server starts one first and then loads its own code."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.core.errors import EngineUnavailableError


@dataclass(frozen=True, slots=True)
class EngineChild:
    """A process that waits at the other end of `connection` to be configured."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def discard(self) -> None:
        """End a process that nobody has configured, and wait for it."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def launch_engine(command: Sequence[str]) -> EngineChild:
    """Run `command` with the descriptor of its end of a new socket pair as its last argument.

    The pair has no name in the file system: no other process can take part. Raises EngineUnavailableError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        descriptor = theirs.fileno()
        try:
            # A session of its own: Ctrl-C in the terminal reaches only the parent, which drains first.
            process = subprocess.Popen(
                [*command, str(descriptor)],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(descriptor,),
            )
        except OSError as error:
            ours.close()
            raise EngineUnavailableError(f"the engine process cannot be started: {error}") from error
    ours.settimeout(0.0)
    return EngineChild(process, ours)
