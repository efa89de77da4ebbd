"""`reducer status` for answers of reducers, and for addresses that give no answer."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reducer.cli import main
from reducer.core.measures.ranking import MAX_RANKS
from reducer.core.surface.numbers import RunReport
from reducer.server.daemon.peers import Answers
from reducer.server.daemon.status_page import MAX_RUNS, numbers, page
from reducer.status.amounts import amount, duration
from reducer.status.redirect import redirect_to
from reducer.status.summary import RankStatus, RunStatus, Summary, summarize
from reducer.status.table import as_text
from reducer_tools.top.rates import Rates, change
from tests.support.ports import free_port
from tests.support.simlane import SimLane, snapshot_of


def status(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["status", *arguments])


def run(**changes: Any) -> dict[str, Any]:
    numbers = {
        "job": "bert", "run_id": "r1", "world_size": 4, "connected": 4, "left": 0, "seconds": 100.0,
        "rounds": 50, "own_rounds": 25, "open_rounds": 0, "bytes_in": 1_000, "bytes_out": 2_000,
        "lateness": [], "disconnected": [], "waiting": [], "lost": [],
    }  # fmt: skip
    found = {**numbers, **changes}
    return {"title": found["job"], **found}


def answer(*lanes: dict[str, Any], forming: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """/api/stats of a reducer with one run on each lane."""
    core = {"reserved_bytes": 10, "budget_bytes": 1_000}
    numbers = {"core": core, "buffer_bytes": 3, "loop_lag_seconds": 0.001, "kernels": "native"}
    reports = [{"runs": [lane], "forming": forming or []} for lane in lanes]
    return {
        "version": "0", "ready": True, "down": [], "started": 1.0, "clock": 10.0,
        "lanes": [{**numbers, "report": report} for report in reports],
    }  # fmt: skip


def test_ranks_without_which_a_run_goes_on_are_named_once() -> None:
    first = run(lost=[[2, 9.0, "the worker closed the connection"]], connected=3)
    second = run(lost=[[2, 8.9, "taken for lost by the others"], [0, 1.0, "left"]], connected=3)
    found = summarize({"a:1": answer(first), "b:1": answer(second)})
    text = as_text(found)
    assert "without rank 0 since 1.0 s: left" in text
    assert "without rank 2 since 9.0 s: the worker closed the connection" in text
    assert text.count("without rank") == 2


def ended(job: str, run_id: str, seconds: float, cause: str) -> dict[str, Any]:
    return {
        "job": job, "title": job, "run_id": run_id, "world_size": 4, "rounds": 41_200,
        "own_rounds": 20_600, "seconds": seconds, "cause": cause,
    }  # fmt: skip


def test_a_job_that_has_ended_is_shown_with_the_cause_of_its_last_run() -> None:
    one, other = answer(run()), answer(run())
    one["lanes"][0]["report"]["ended"] = [
        ended("resnet", "r1", 900.0, "finished"),
        ended("resnet", "r2", 59.0, "the run is over"),
        ended("bert", "r0", 60.0, "finished"),
    ]
    other["lanes"][0]["report"]["ended"] = [ended("resnet", "r2", 60.0, "rank 1 is lost")]
    text = as_text(summarize({"a:1": one, "b:1": other}))
    assert re.search(
        r"^job 'resnet' ended 1 min 0 s ago, at \d\d:\d\d, after 41,200 rounds of 4 workers: "
        r"rank 1 is lost$",
        text,
        re.M,
    )
    assert text.count(" ended ") == 1, "bert runs again"


def test_rounds_of_one_chunk_count_once_and_those_of_a_lost_lane_too() -> None:
    """Regression: 200 steps of a small model over two reducers were shown as 104 rounds."""
    small = [run(rounds=104, own_rounds=104), run(rounds=96, own_rounds=96)]
    again = [run(rounds=200, own_rounds=90), run(rounds=3, own_rounds=2)]
    for lanes in (small, again):
        found = summarize({"a:1": answer(lanes[0]), "b:1": answer(lanes[1])})
        assert found.runs[0].rounds == 200


def test_only_the_latest_ended_jobs_have_a_line() -> None:
    one = answer(run())
    one["lanes"][0]["report"]["ended"] = [
        ended(f"j{n}", "r", 60.0 + n, "finished") for n in range(20)
    ]
    text = as_text(summarize({"a:1": one}))
    assert "job 'j0' ended" in text and "job 'j8' ended" not in text
    assert "and 12 more in the last hour" in text


def test_lanes_see_the_same_time_and_their_own_bytes() -> None:
    found = summarize(
        {
            "a:1": answer(
                run(lateness=[[3, 20.0], [1, 1.0]], rounds=50, own_rounds=20),
                run(lateness=[[3, 25.0]], rounds=49, own_rounds=10, connected=3, seconds=99.0),
            ),
            "b:1": answer(run(lateness=[[1, 2.0]], own_rounds=20, open_rounds=2)),
        }
    )
    (bert,) = found.runs
    assert (bert.workers, bert.seconds, bert.rounds, bert.bytes_in) == (3, 100.0, 50, 3_000)
    assert [(r.rank, r.waited, r.share) for r in bert.ranks] == [(3, 25.0, 0.25), (1, 2.0, 0.02)]
    first, second = found.reducers
    assert (first.lanes, first.workers, first.places, first.memory) == (2, 3, 4, 2_000)
    assert (second.open_rounds, second.bytes_out, second.rounds) == (2, 2_000, 50)


def test_the_oldest_wait_for_a_rank_is_shown_and_who_lacks_it() -> None:
    young = {"key": "b", "round": 7, "age_ms": 2_000, "absent": [2], "absent_count": 1}
    old = {"key": "a", "round": 3, "age_ms": 12_500, "absent": [2], "absent_count": 1}
    found = summarize(
        {"a:1": answer(run(waiting=[young])), "b:1": answer(run(waiting=[old], disconnected=[2]))}
    )
    text = as_text(found)
    assert "not connected to b:1; absent for 12.5 s from 'a' round 3" in text
    assert "'b'" not in text
    assert "4 of 4 workers, 50 rounds in 1 min 40 s" in text


def test_rates_are_of_the_time_between_two_looks() -> None:
    old = summarize({"a:1": answer(run(rounds=50, lateness=[[3, 20.0]]))})
    later = answer(run(rounds=60, bytes_in=5_000, seconds=104.0, lateness=[[3, 23.0], [1, 0.2]]))
    now = summarize({"a:1": {**later, "clock": 14.0}, "b:1": answer(run())})
    happened = change(old, now)
    assert happened.rates == {"a:1": Rates(received=1_000.0, sent=0.0, rounds=2.5)}
    assert happened.waits["bert", "r1"] == pytest.approx({3: 0.75, 1: 0.05})
    ended = change(now, summarize({"a:1": {**answer(run(job="next")), "clock": 15.0}}))
    assert ended.rates["a:1"] == Rates(0.0, 0.0, 0.0)


def test_who_is_absent_is_late_all_of_the_time() -> None:
    wait = {"key": "a", "round": 3, "age_ms": 12_500, "absent": [2], "absent_count": 1}
    old = summarize({"a:1": answer(run())})
    now = summarize({"a:1": answer(run(seconds=101.0, waiting=[wait]))})
    assert change(old, now).waits["bert", "r1"] == {2: 1.0}


def test_the_page_is_told_no_more_than_it_shows() -> None:
    lateness = [[rank, 1.0 + rank] for rank in range(100)]
    runs = [
        RunReport(**run(run_id=f"r{n:03}", lateness=lateness, oldest_seconds=0.0))
        for n in range(MAX_RUNS + 6)
    ]
    lane = replace(SimLane().lane_report(), runs=runs)
    found = numbers("a:1", snapshot_of(lane))
    assert (len(found["runs"]), found["more_runs"]) == (MAX_RUNS, 6)
    assert [rank["rank"] for rank in found["runs"][0]["ranks"]] == [*range(99, 99 - MAX_RANKS, -1)]
    assert f"const MAX_RANKS = {MAX_RANKS};" in page().body.decode()


def test_a_reducer_with_two_addresses_is_on_its_page_once() -> None:
    own = snapshot_of(SimLane().lane_report())
    twice = Answers({"x:1": own.as_json(), "y:1": own.as_json()})
    found = numbers("a:1", own, twice)
    assert [reducer["address"] for reducer in found["reducers"]] == ["x:1"]
    assert (found["address"], found["reducer"]["address"]) == ("a:1", "x:1")


def test_two_runs_of_one_job_are_two() -> None:
    found = summarize({"a:1": answer(run()), "b:1": answer(run(run_id="r2"))})
    assert [r.run_id for r in found.runs] == ["r1", "r2"]
    assert found.reducers[0].jobs == 1


def test_a_job_that_forms_names_who_is_absent() -> None:
    one = {"job": "gpt", "title": "gpt", "run_id": "", "world_size": 4, "joined": 3, "absent": [2]}
    two = {
        "job": "gpt",
        "title": "gpt",
        "run_id": "",
        "world_size": 4,
        "joined": 2,
        "absent": [1, 2],
    }
    text = as_text(
        summarize({"a:1": answer(run(), forming=[one]), "b:1": answer(run(), forming=[two])})
    )
    assert "job 'gpt' is forming: 2 of 4 workers have joined; absent: ranks 1, 2" in text


def test_a_group_is_shown_apart_from_its_job() -> None:
    """Forming or formed: a group's ranks differ from the job's ranks."""
    group = {"title": "gpt#rows", "run_id": "r1#rows", "world_size": 2}
    forms = [
        {"job": "gpt", "joined": 1, "absent": [0], **group},
        {"job": "gpt", "title": "gpt", "run_id": "", "world_size": 4, "joined": 3, "absent": [2]},
    ]
    text = as_text(summarize({"a:1": answer(run(job="bert"), forming=forms)}))
    assert "job 'gpt' is forming: 3 of 4 workers have joined; absent: rank 2" in text
    assert "job 'gpt#rows' is forming: 1 of 2 workers have joined; absent: rank 0" in text
    found = summarize({"a:1": answer(run(job="gpt"), run(job="gpt", **group, connected=2))})
    assert "job 'gpt#rows', run 'r1#rows': 2 of 2 workers" in as_text(found)
    assert found.reducers[0].jobs == 1


def test_whoever_is_not_late_takes_no_room() -> None:
    quiet = RunStatus("j", "j", "r", 3, 3, seconds=1_000.0, ranks=[RankStatus(1, 5.0, 0.005)])
    assert "nobody is late" in as_text(Summary([], [quiet]))
    late = [RankStatus(rank, 100.0, 0.1) for rank in range(20)]
    busy = RunStatus("j", "j", "r", 20, 20, seconds=1_000.0, ranks=late)
    text = as_text(Summary([], [busy]))
    assert text.count("10%") == 8
    assert "and 12 more" in text


def test_names_cannot_play_with_the_terminal() -> None:
    text = as_text(summarize({"a:1": answer(run(job="\x1b[2Jx", run_id="\r"))}))
    assert "\x1b" not in text
    assert "\r" not in text


def test_columns_are_aligned() -> None:
    text = as_text(
        summarize({"a:1": answer(run()), "long-name:22223": answer(run(rounds=123_456))})
    )
    head, *rows = text.split("\n\n")[0].splitlines()
    end = head.index("ROUNDS") + len("ROUNDS")
    assert [row[:end].rstrip().split()[-1] for row in rows] == ["50", "123,456"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.00 kB"), (12_345, "12.3 kB"), (999_600, "1.00 MB"),
     (1.5e9, "1.50 GB"), (99.96e12, "100 TB"), (5e15, "5000 TB")],
)  # fmt: skip
def test_amounts(size: float, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60.0, "1 min 0 s"), (3599.7, "1 h 0 min"),
     (7300.0, "2 h 1 min")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("text", ["a:b", "a:0", "a:70000", "http://a", "a/b", "u@a", "[::1", "a?b"])
def test_addresses_that_are_none(text: str) -> None:
    result = status("--addresses", f"good:1,{text}")
    assert result.exit_code == 2
    assert f"'--addresses': address {text!r}" in result.output


@contextmanager
def one_answer(data: bytes, times: int = 1) -> Iterator[str]:
    """The address of a server that sends `data` to one client, once or 20 times a second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock = listener.accept()[0]
            with sock:
                sock.recv(65_536)
                with suppress(OSError):
                    for number in range(times):
                        time.sleep(0.05 * bool(number))
                        sock.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_metrics_port_that_cannot_be_reached_is_named() -> None:
    there = f"127.0.0.1:{free_port()}"
    with one_answer(redirect_to(there)) as address:
        result = status("--addresses", address)
    assert result.exit_code == 1
    assert f"Error: {address}: its metrics are at {there}: {there}: Connection" in result.output
    assert "--metrics-host" in result.output


def test_nothing_listens() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = status("--addresses", address)
    assert result.exit_code == 1
    assert f"Error: {address}: Connection refused; does `reducer serve` run there" in result.output
    assert "--metrics-host" in result.output


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no reducer of this version"),
        (b"ORSF\x01\x04", "port for workers (2222)"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nnothing here", "it answers 404: 'nothing here'"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\na lane does not answer", "it answers 503"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "no reducer of this version"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"lanes": [{}]}', "no reducer of this version"),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", "no reducer of this version"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "no reducer of this version"),
    ],
)
def test_what_answers_is_no_reducer(data: bytes, text: str) -> None:
    with one_answer(data) as address:
        result = status("--addresses", address)
    assert result.exit_code == 1
    assert f"Error: {address}: " in result.output
    assert text in result.output


def test_nothing_answers_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = status("--timeout", "0.2", "--addresses", address)
    assert result.exit_code == 1
    assert f"{address}: no answer in 0.2 s" in result.output


@pytest.mark.parametrize("data", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n "])
def test_an_answer_without_an_end_is_given_up_in_time(data: bytes) -> None:
    began = time.monotonic()
    with one_answer(data, 200) as address:
        result = status("--timeout", "0.3", "--addresses", address)
    assert time.monotonic() - began < 5
    assert result.exit_code == 1
    assert f"{address}: no answer in 0.3 s" in result.output


def test_an_answer_that_lacks_a_field_is_none_of_ours() -> None:
    numbers = {**run(), "rounds": None}
    for found in (
        {"clock": 1.0, "lanes": []},
        answer(numbers),
        answer({**numbers, "disconnected": 5}),
        {**answer(run()), "down": ["\x1b[2J"]},
    ):
        data = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(found).encode()
        with one_answer(data) as address:
            result = status("--addresses", address)
        assert "no reducer of this version" in result.output


def test_json_names_the_errors_too() -> None:
    address = f"127.0.0.1:{free_port()}"
    result = CliRunner().invoke(main, ["status", "--json", "--addresses", address])
    found = json.loads(result.stdout)
    assert found["reducers"] == found["runs"] == []
    assert "Connection refused" in found["errors"][address]
