"""`REDUCER_DEBUG`: what a daemon and its workers log, as lines that programs can read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.cluster import Daemon, environment

DEBUG = {"REDUCER_DEBUG": "trace", "REDUCER_LOG_FORMAT": "json"}
SCRIPT = """
import sys, numpy, reducer_client
with reducer_client.connect([sys.argv[1]], job="bert", rank=0, world_size=1, run_id="r1") as group:
    for _ in range(2):
        group.all_reduce(numpy.ones(1000, numpy.float32), key="layer").wait(60)
"""


def run_worker(address: str, **env: str) -> str:
    """The stderr of a worker that runs two rounds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, address],
        env=environment(env), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stderr


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_both_sides_tell_of_jobs_ranks_and_rounds() -> None:
    with Daemon(env=DEBUG) as daemon:
        worker = parsed(run_worker(daemon.address, **DEBUG))
    joined, *rounds, left = worker
    of = {"job": "bert", "rank": 0}
    assert all(line.items() >= of.items() and line["pid"] for line in worker)
    assert (joined["level"], joined["run"]) == ("info", "r1")
    assert f"rank 0 of 1 in run r1 on {daemon.address}; 1 connections" in joined["message"]
    assert [(line["key"], line["round"]) for line in rounds] == [("layer", 0), ("layer", 1)]
    assert rounds[0]["message"] == "all_reduce of float32 x 1000"
    assert left["message"].startswith("leaves: ")
    lines = [line for line in parsed(daemon.log) if line.get("job") == "bert"]
    assert all(line["lane"] == 0 for line in lines)
    texts = " ".join(line["message"] for line in lines)
    assert "rank 0 of job 'bert' joins: 1 of 1 are here" in texts
    assert "the connection has ended" in texts
    assert {line.get("run") for line in lines if "workers joined" in line["message"]} == {"r1"}


def test_debug_lines_appear_only_on_request() -> None:
    with Daemon() as daemon:
        assert run_worker(daemon.address) == ""
        told = run_worker(daemon.address, REDUCER_DEBUG="info:join")
    assert "joins:" not in daemon.log
    assert " logger=reducer_client.join " in told
    assert len(told.splitlines()) == 2
    assert "key=" not in told
