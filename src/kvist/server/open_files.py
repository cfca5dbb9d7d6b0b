"""The limit on open files: each waiting client holds one. Asked before anything of a server is loaded."""

from __future__ import annotations

import resource

from kvist.core.errors import ConfigError

MAX_OPEN_FILES = 1 << 16
LEAST_OPEN_FILES = 64  # a server without a client has about 20


def allow_many_connections() -> None:
    """Raise this process's limit to what it may have. Raises ConfigError if that is too few to serve anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if wanted < LEAST_OPEN_FILES:
        raise ConfigError(
            f"this process may open {wanted} files; a server needs {LEAST_OPEN_FILES}, and one more for each client. "
            "Raise the limit with ulimit -n"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
