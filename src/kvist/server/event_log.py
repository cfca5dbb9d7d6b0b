"""One log line per event, with fields. Never a prompt, an answer or a key; a warning that repeats is rationed."""

from __future__ import annotations

import logging
from collections.abc import Callable

RATION = 5  # lines of one kind
RATION_PERIOD_S = 10.0


class RationFilter(logging.Filter):
    """Lets RATION lines of each kind through per period, and then says how many it held back. Errors always pass."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self._periods: dict[str, tuple[float, int]] = {}  # kind -> start, lines seen

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        kind, now_s = f"{record.name}:{str(record.msg)[:200]}", self._now_s()
        if len(self._periods) > 1000 and kind not in self._periods:
            self._periods.clear()
        start_s, num_seen = self._periods.get(kind, (now_s, 0))
        if now_s - start_s > RATION_PERIOD_S:
            held_back = num_seen - RATION
            start_s, num_seen = now_s, 0
            if held_back > 0:
                record.msg = f"{record.msg} (and {held_back} more like it before)"
        self._periods[kind] = (start_s, num_seen + 1)
        return num_seen < RATION


class LineFormatter(logging.Formatter):
    """`time level event key=value ...`; line breaks inside are escaped, so an event stays one line."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def configure_logging(level: str, now_s: Callable[[], float]) -> None:
    """Send kvist's and uvicorn's lines to standard error in one format. For the process's own start only."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    handler.addFilter(RationFilter(now_s))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("kvist").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
