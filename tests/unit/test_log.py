"""Log lines: quoting, JSON, rate limit, and that a full disk stops nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from reducer import log


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(log.ROOT)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_text_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "text", lane=3)
    logging.getLogger("reducer.lane").info("a b=%s", 'c"\nd')
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert " level=info logger=reducer.lane lane=3 " in line
    assert line.endswith('message="a b=c\\"\\nd"\n')


def test_json_with_a_stack(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("info", "json")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("reducer.lane").exception("outer")
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == "outer"
    assert "ValueError: inner" in line["stack"]


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up("warning", "text")
    logging.getLogger("reducer.x").info("no")
    assert capsys.readouterr().err == ""


def test_lines_that_cannot_be_written_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        log.set_up("info", "text")
        logging.getLogger("reducer.x").info("lost")
        assert log.dropped_lines() == 1
        with pytest.raises(OSError, match="space"):
            full.close()


def test_rate_limit_counts_what_it_holds_back() -> None:
    limit = log.RateLimit(1.0)
    assert limit.admit(10.0) == 0
    assert limit.admit(10.5) is None
    assert limit.admit(10.9) is None
    assert limit.admit(11.0) == 2
    assert limit.admit(12.5) == 0
