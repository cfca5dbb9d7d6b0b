"""The one place of the engine that reads the machine's clock."""

from __future__ import annotations

import time
from datetime import datetime


class RealClock:
    """Monotonic seconds; the same origin for all processes of this machine, so times may cross process borders."""

    def now_s(self) -> float:
        return time.monotonic()


def local_time() -> datetime:
    """Date and time of day, for text that states them; never for measuring."""
    return datetime.now().astimezone()
