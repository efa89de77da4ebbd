"""Log lines: quoting, JSON, rate limit, and that a full disk stops no program."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reducer import log

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(log.ROOT)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def written(capfd: pytest.CaptureFixture[str]) -> str:
    for handler in logging.getLogger(log.ROOT).handlers:
        handler.close()
    return capfd.readouterr().err


def test_text_quotes_what_needs_it(capfd: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text", lane=3)
    logging.getLogger("reducer.lane").info("a b=%s", 'c"\nd')
    line = written(capfd)
    assert line.count("\n") == 1
    assert " level=info logger=reducer.lane lane=3 " in line
    assert line.endswith('message="a b=c\\"\\nd"\n')


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("letter", ["\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u202e"])
def test_what_others_named_does_nothing_to_a_terminal(
    form: str, letter: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.set_up("info", form)
    logging.getLogger("reducer.lane").info("late", extra={"about": {"job": f"a{letter}b"}})
    line = written(capfd)
    assert line.removesuffix("\n").isprintable()
    assert f"a\\u{ord(letter):04x}b" in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_letters_of_all_languages_are_kept(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", form)
    logging.getLogger("reducer.lane").info("größer é 大")
    assert "größer é 大" in written(capfd)


def test_json_with_a_stack(capfd: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "json")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("reducer.lane").exception("outer")
    line = json.loads(written(capfd))
    assert line["message"] == "outer"
    assert "ValueError: inner" in line["stack"]


def test_what_a_line_is_about_is_in_its_fields(capfd: pytest.CaptureFixture[str]) -> None:
    fields = {"job": "bert", "run": "r 1", "rank": 3, "round": 7}
    log.set_up("info", "text", lane=0)
    logging.getLogger("reducer.lane").info("late", extra={"about": fields})
    assert ' lane=0 job=bert run="r 1" rank=3 round=7 message=late\n' in written(capfd)
    log.set_up("info", "json")
    logging.getLogger("reducer.lane").info("late", extra={"about": fields})
    assert json.loads(written(capfd)).items() >= fields.items()


@pytest.mark.parametrize(
    ("text", "level", "subsystems"),
    [
        ("warn", logging.WARNING, ()),
        (" INFO ", logging.INFO, ()),
        ("trace:lane, auth", logging.DEBUG, ("lane", "auth")),
        ("trace:", logging.DEBUG, ()),
    ],
)
def test_values_of_debug(text: str, level: int, subsystems: tuple[str, ...]) -> None:
    assert log.parse_debug(text) == (level, subsystems)


@pytest.mark.parametrize("text", ["debug", "1", "trace:lan", ":lane", "info,lane"])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected warn, info, trace, or one of them with subsys"):
        log.parse_debug(text)


def test_debug_wins_over_the_level(capfd: pytest.CaptureFixture[str]) -> None:
    names = ("reducer.lane", "reducer.auth")
    log.set_up("warning", "text", "trace:lane")
    for name in names:
        logging.getLogger(name).debug("of %s", name)
        logging.getLogger(name).setLevel(logging.NOTSET)
    lines = written(capfd)
    assert "of reducer.lane" in lines and "of reducer.auth" not in lines
    log.set_up("info", "text", "warn")
    logging.getLogger("reducer.lane").info("no")
    assert written(capfd) == ""


def test_subsystems_are_loggers() -> None:
    """Each subsystem is the last part of a logger's name in our sources."""
    sources = [p.read_text() for top in ("reducer", "client") for p in (ROOT / top).rglob("*.py")]
    named = {n for text in sources for n in re.findall(r'getLogger\(f?"[^"]*\.(\w+)"\)', text)}
    assert named == set(log.SUBSYSTEMS)


def test_levels(capfd: pytest.CaptureFixture[str]) -> None:
    log.set_up("warning", "text")
    logging.getLogger("reducer.x").info("no")
    assert written(capfd) == ""


def test_lines_that_cannot_be_written_are_counted() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = log.LineWriter(full.fileno())
        writer.emit(logging.makeLogRecord({"msg": "lost"}))
        writer.close()
    assert writer.dropped == 1


def test_a_reader_that_has_stopped_stops_nobody() -> None:
    reader, writer_end = os.pipe()
    writer = log.LineWriter(writer_end)
    started = time.monotonic()
    for _ in range(5_000):
        writer.emit(logging.makeLogRecord({"msg": "x" * 200}))
    assert writer.dropped > 0
    assert time.monotonic() - started < 2
    os.close(reader)  # now the thread gets EPIPE, and ends
    writer.close()
    os.close(writer_end)


def test_rate_limit_counts_what_it_holds_back() -> None:
    limit = log.RateLimit(1.0)
    assert limit.admit(10.0) == 0
    assert limit.admit(10.5) is None
    assert limit.admit(10.9) is None
    assert limit.admit(11.0) == 2
    assert limit.admit(12.5) == 0


def test_rate_limit_lets_a_burst_through_after_a_rest() -> None:
    limit = log.RateLimit(1.0, burst=3)
    assert [limit.admit(10.0) for _ in range(4)] == [0, 0, 0, None]
    assert [limit.admit(11.0) for _ in range(2)] == [1, None]
    assert [limit.admit(99.0) for _ in range(4)] == [1, 0, 0, None]
    assert limit.admit(199.0, cost=3) == 1
    assert limit.admit(199.0) is None
