"""The status page in a real browser, while real workers are late."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.browser import Browser, find_chromium
from tests.support.cluster import Daemon
from tests.support.late import work
from tests.support.ports import free_port
from tests.support.ranks import start_ranks
from tests.support.wait import wait_until

WORLD = 4
LATE = 2
NAP = 0.3  # seconds
CHROMIUM = find_chromium()
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium-headless-shell)"
)


@contextmanager
def at_work(daemon: Daemon, job: str, more: Sequence[str] = (), **options: Any) -> Iterator[None]:
    """A job that goes on until the end of the block, with one rank that is late."""
    addresses = [daemon.address, *more]
    with start_ranks(WORLD, work, addresses, job, LATE, NAP, talk=True, **options) as ranks:
        yield
        ranks.send(0)
        assert all(o.error is None and o.reported for o in ranks.collect(60))


@contextmanager
def looking_at(daemon: Daemon) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as browser:
        browser.open(f"http://127.0.0.1:{daemon.metrics_port}/")
        yield browser


def test_the_slow_rank_is_read_off_the_page() -> None:
    with Daemon(lanes=2) as daemon, looking_at(daemon) as browser:
        wait_until(lambda: "No job is running" in browser.text("#runs"), 30, "the page is there")
        with at_work(daemon, HOSTILE):
            wait_until(lambda: " late: " in browser.text(".verdict"), 60, "somebody is late")
            # On a busy machine other ranks may be late, too; LATE comes first.
            found = re.match(
                r"Ranks? (\d+).* late: the others .* (\d+) %", browser.text(".verdict")
            )
            assert found is not None and int(found[1]) == LATE
            rows = "[...document.querySelectorAll('tr.late')]"
            assert f"rank {LATE}" in browser.evaluate(f"{rows}.map(row => row.cells[0].innerText)")
            labels = browser.evaluate(f"{rows}.map(row => row.querySelector('canvas').ariaLabel)")
            assert any(re.match(rf"rank {LATE}: waited for \d+ % of", text) for text in labels)
            assert browser.text("#state") == "● serving"
            assert browser.text("h2") == f"Job {HOSTILE}"
            assert browser.evaluate("document.title").startswith(f"late: rank {LATE}")
            assert re.fullmatch(r"[\d.]+ [kMG]B/s", browser.text("#received"))
            assert browser.text("#received") != "0 B/s"
            assert browser.text("#workers") == f"{WORLD} of {WORLD}"
            assert len(daemon.get("/api/status")[1]) < 20_000
        wait_until(lambda: "No job is running" in browser.text("#runs"), 30, "the job is gone")
        assert browser.complaints == []


def test_a_page_shows_all_reducers_of_the_job_and_who_does_not_answer() -> None:
    """The page finds reducers in two ways: a shared run on this machine, or their names."""
    with Daemon() as stranger, Daemon() as other, Daemon() as daemon, looking_at(daemon) as browser:
        with at_work(daemon, "both", more=[other.address]):
            rates = r"● serves\s+[\d.]+ [kM]B/s"
            wait_until(
                lambda: len(re.findall(rates, browser.text("#reducers"))) == 2, 60, "both receive"
            )
            assert "all 2 answer" in browser.text("#reducers")
            assert stranger.address not in browser.text("#reducers")
            waited = "Latest: rank 2 of both"
            wait_until(lambda: waited in browser.text("#past"), 30, "the history names the rank")
        wait_until(
            lambda: browser.evaluate("at('reducers').hidden"), 30, "without a job it is alone"
        )
        assert browser.complaints == []
    named = {"REDUCER_ADDRS": f"{other.address},127.0.0.1:{free_port()}"}
    with Daemon(env=named) as daemon, looking_at(daemon) as browser:
        wait_until(lambda: "2 reducers without" in browser.text("#reducers"), 30, "they are named")


def test_a_clock_that_has_begun_again_does_not_stop_the_page() -> None:
    """As in a page that stays open while the reducer's machine reboots."""
    with Daemon() as daemon, looking_at(daemon) as browser:
        wait_until(lambda: browser.text("#state") == "● serving", 30, "the page is there")
        browser.evaluate("before = {...before, clock: 1e12, started: -1}, 0")
        wait_until(lambda: browser.evaluate("before.clock") < 1e12, 30, "it takes the new clock")


def test_a_reducer_that_is_gone_is_said_to_be_so() -> None:
    with Daemon() as daemon, looking_at(daemon) as browser:
        wait_until(lambda: browser.text("#state") == "● serving", 30, "the page is there")
        daemon.stop()
        wait_until(lambda: "no answer for" in browser.text("#state"), 30, "it says so")
        assert browser.evaluate("document.body.className") == "stale"
