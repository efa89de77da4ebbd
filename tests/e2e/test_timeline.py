"""Timelines of a real job: phases add up, the slow rank is named, a killed writer leaves a file."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
import pytest

from tests.support.cluster import Daemon, run_cli
from tests.support.ranks import Tell, join, run_ranks, start_ranks
from tests.support.wait import wait_until

WORLD = 3
LATE = 1
ROUNDS = 5
NAP = 0.3  # seconds
PHASES = {"queued", "sending", "waiting", "receiving"}

Event = dict[str, Any]


def _work(rank: int, world: int, addresses: list[str], job: str, folder: str) -> None:
    """Rounds of two keys in flight; rank LATE naps before each round."""
    with join(rank, world, addresses, job, timeline=folder) as group:
        values = np.ones(300_000, np.float32)
        for _ in range(ROUNDS):
            if rank == LATE:
                time.sleep(NAP)
            works = [group.all_reduce(values, key=key) for key in ("first", 'se"cond\n')]
            for work in works:
                work.wait()


def events_of(path: Path) -> list[Event]:
    """The events of a complete file."""
    return checked(path.read_text())


def events_left_of(path: Path) -> list[Event]:
    """The events without the last round, whose write may be torn by the kill."""
    lines = path.read_text().split("\n")
    last = max(n for n, line in enumerate(lines) if '"ph":"X"' in line and '"args"' in line)
    return checked("\n".join(lines[:last]).removesuffix(",") + "]")


def checked(text: str) -> list[Event]:
    found: list[Event] = json.loads(text)
    for event in found:
        assert set(event) >= {"ph", "name", "pid"}
        assert event["ph"] in "MX"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert abs(event["ts"] / 1e6 - time.time()) < 600
    return found


def slices(events: list[Event]) -> dict[int, list[tuple[Event, list[Event]]]]:
    """By track, each round with its phases; AssertionError if slices do not nest."""
    found: dict[int, list[tuple[Event, list[Event]]]] = {}
    for event in events:
        if event["ph"] != "X":
            continue
        track = found.setdefault(event["tid"], [])
        if "args" in event:
            track.append((event, []))
        else:
            track[-1][1].append(event)
    for track in found.values():
        free_from = 0
        for round_, phases in sorted(track, key=lambda entry: entry[0]["ts"]):
            assert round_["ts"] >= free_from
            free_from = round_["ts"] + round_["dur"]
            assert sum(phase["dur"] for phase in phases) == round_["dur"]
            ends = [round_["ts"], *(phase["ts"] + phase["dur"] for phase in phases)]
            assert [phase["ts"] for phase in phases] == ends[:-1]
    return found


def test_every_round_of_ranks_and_lanes(job: str, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with Daemon("--timeline", str(folder), lanes=2) as daemon:
        run_ranks(WORLD, _work, [daemon.address], job, str(folder))
    of_ranks = sorted(folder.glob(f"{job}-rank*.json"))
    of_lanes = sorted(folder.glob("reducer-*.json"))
    assert (len(of_ranks), len(of_lanes)) == (WORLD, 2)
    for rank, path in enumerate(of_ranks):
        rounds = [entry for track in slices(events_of(path)).values() for entry in track]
        assert len(rounds) == 2 * ROUNDS
        assert {phase["name"] for _, phases in rounds for phase in phases} <= PHASES
        assert {round_["args"]["bytes"] for round_, _ in rounds} == {1_200_000}
        # The other ranks wait for LATE.
        waits = [phase for _, phases in rounds for phase in phases if phase["name"] == "waiting"]
        slow = [phase for phase in waits if phase["dur"] >= 0.5e6 * NAP]
        assert rank == LATE or len(slow) >= ROUNDS
    for path in of_lanes:
        entries = [entry for track in slices(events_of(path)).values() for entry in track]
        assert len(entries) == 2 * ROUNDS
        waits = [e for e, _ in entries if e["args"]["waited_us"] >= 0.5e6 * NAP]
        assert len(waits) >= ROUNDS
        assert mode(e["args"]["last_rank"] for e in waits) == LATE
        assert any(p["name"] == f"waiting for rank {LATE}" for _, phases in entries for p in phases)
    _merge(folder, tmp_path / "all.json")


def _merge(folder: Path, merged: Path) -> None:
    done = run_cli("timeline", str(folder), "--out", str(merged))
    assert done.returncode == 0, done.stderr
    assert f"{WORLD + 2} files, {(WORLD + 2) * 2 * ROUNDS} rounds" in done.stdout
    events: list[Event] = json.loads(merged.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == WORLD + 2
    assert [names[1 + rank] for rank in range(WORLD)] == [f"rank {rank}" for rank in range(WORLD)]


def _work_on(
    rank: int, world: int, addresses: list[str], job: str, folder: str, tell: Tell
) -> None:
    with join(rank, world, addresses, job, timeline=folder) as group:
        for number in range(1_000_000):
            group.all_reduce(np.ones(1_000, np.float32), key="grad").wait()
            if number == 100:
                tell("worked")


def test_a_killed_writer_leaves_what_it_wrote(job: str, tmp_path: Path) -> None:
    with (
        Daemon("--timeline", str(tmp_path)) as daemon,
        start_ranks(1, _work_on, [daemon.address], job, str(tmp_path), talk=True) as ranks,
    ):
        ranks.receive(0, 60)
        files = sorted(tmp_path.glob("*.json"))
        wait_until(lambda: all(path.stat().st_size > 10_000 for path in files), 30, "rounds")
        ranks.kill(0, signal.SIGKILL)
        daemon.kill()
        assert len(files) == 2
        for path in files:
            assert slices(events_left_of(path))
        done = run_cli("timeline", *map(str, files), "--out", str(tmp_path / "all.json"))
        assert done.returncode == 0, done.stderr


def test_a_folder_that_cannot_be_made_is_named(job: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with Daemon() as daemon, pytest.raises(ValueError, match=f"timeline {file}/"):
        join(0, 1, [daemon.address], job, timeline=str(file))
    done = run_cli("serve", "--port", "0", "--timeline", str(file))
    assert done.returncode == 2
    assert f"--timeline (REDUCER_TIMELINE) {file}: expected a folder" in done.stderr
