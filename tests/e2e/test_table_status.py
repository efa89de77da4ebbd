"""The tables of a job on a real reducer: `reducer status`, `reducer top`, and the status page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, find_chromium
from tests.support.cluster import Daemon, run_cli
from tests.support.table_job import STEPS, tables
from tests.support.wait import wait_until

CHROMIUM = find_chromium()
HOSTILE = "<img src=x onerror=document.title='owned'>"
WAITS = r"step 5 waits [\d.]+ s for workers 1, 2; left out: worker 2 \(100% of the steps\)"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(lanes=2) as running, tables(running.port, HOSTILE):
        address = f"127.0.0.1:{running.metrics_port}"
        wait_until(
            lambda: "waits" in run_cli("status", "--addresses", address).stdout, 30, "step 5 waits"
        )
        yield running


def test_status_shows_the_tables_and_who_is_late(daemon: Daemon) -> None:
    address = f"127.0.0.1:{daemon.metrics_port}"
    lines = run_cli("status", "--addresses", address).stdout.splitlines()
    title = lines.index(f"tables of job {HOSTILE!r}: 3 workers")
    assert re.match(r"  async +async +1/1 +160 B +3 +3 +p50 1, p99 3 +0 +0$", lines[title + 2])
    assert re.match(rf"  net +step, 2 of 3 +1/1 +160 B +4 +4 +- +0 +0 +{WAITS}$", lines[title + 3])
    found = json.loads(run_cli("status", "--json", "--addresses", address).stdout)
    table = found["tables"][1]
    assert (table["name"], table["step"], table["applied"]) == ("net", STEPS, 2 * 3 * STEPS)
    assert [late["worker"] for late in table["late"]] == [2, 1]  # whoever is later comes first


def test_top_shows_them(daemon: Daemon) -> None:
    address = f"127.0.0.1:{daemon.metrics_port}"
    shown = run_cli("top", "--once", "--interval", "0.2", "--addresses", address).stdout
    shown = " ".join(shown.split())  # the last column is folded
    assert re.search(rf"net step, 2 of 3 1/1 160 B 4 0\.0 - 0 0 {WAITS}$", shown), shown


@pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium-headless-shell)"
)
def test_the_page_shows_them(daemon: Daemon) -> None:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as browser:
        browser.open(f"http://127.0.0.1:{daemon.metrics_port}/")
        wait_until(lambda: "0.0" in browser.text("#tables"), 30, "rates are there")
        assert browser.text("#tables h2") == f"Tables of job {HOSTILE}"
        rows = browser.evaluate(
            "[...document.querySelectorAll('#tables tbody tr')]"
            ".map(row => [row.className, ...[...row.cells].map(cell => cell.innerText)])"
        )
        assert rows[0] == ["", "async", "async", "160 B", "3", "0.0", "p50 1, p99 3", "0", ""]
        assert rows[1][:3] == ["late", "net", "step, 2 of 3"]
        assert re.fullmatch(WAITS, rows[1][-1]), rows
        assert browser.text("#runs") == ""
        assert (browser.text("#workers"), browser.text("#jobs")) == ("3", "connected, in 1 job")
        assert browser.complaints == []
