"""The log stays usable under a flood: warnings are rationed, events are one line each, errors always pass."""

from __future__ import annotations

import logging

from kvist.server.event_log import RATION, RATION_PERIOD_S, LineFormatter, RationFilter


class Log:
    """Lines that get through, at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.filter = RationFilter(lambda: self.now_s)

    def lines(self, level: int, message: str, *arguments: object) -> list[str]:
        record = logging.LogRecord("kvist.server", level, "", 0, message, arguments, None)
        return [record.getMessage()] if self.filter.filter(record) else []


def test_a_warning_that_repeats_is_rationed_and_then_counted() -> None:
    log = Log()
    flood = [line for i in range(1000) for line in log.lines(logging.WARNING, "refused id=%d", i)]
    assert flood == [f"refused id={i}" for i in range(RATION)]
    log.now_s = RATION_PERIOD_S + 1
    assert log.lines(logging.WARNING, "refused id=%d", 7) == [f"refused id=7 (and {1000 - RATION} more like it before)"]


def test_a_flood_of_one_warning_hides_neither_another_nor_errors() -> None:
    log = Log()
    for _ in range(1000):
        log.lines(logging.WARNING, "noise")
    assert log.lines(logging.WARNING, "engine restarted") == ["engine restarted"]
    for _ in range(2 * RATION):
        assert log.lines(logging.ERROR, "engine lost") == ["engine lost"]


def test_an_event_is_one_line_whatever_it_says() -> None:
    record = logging.LogRecord("kvist", logging.INFO, "", 0, "path=%s", ("a\r\nforged line",), None)
    line = LineFormatter().format(record)
    assert "\n" not in line
    assert line.endswith("path=a\\r\\nforged line")
