"""The timeline file of a lane: phases add up, tracks do not overlap, the size is bounded."""

from __future__ import annotations

import errno
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from reducer.core.surface.events import Traced, Wait
from reducer.server.data import timeline
from reducer.server.data.timeline import Timeline
from tests.support.cluster import run_cli


def traced(round_: int, opened: float, ended: float) -> Traced:
    wait = Wait(3, opened + 0.1, ended - 0.2)
    return Traced(1, "job", "grad", round_, 4_000, opened, wait, ended - 0.05, ended)


def read(file: Timeline) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(Path(file.path).read_text())
    return events


def test_phases_follow_one_another(tmp_path: Path) -> None:
    file = Timeline(str(tmp_path), 7, 0)
    file.add(traced(0, 10.0, 11.0))
    file.close()
    whole, *phases = [event for event in read(file) if event["ph"] == "X"]
    waited = pytest.approx(700_000, abs=1)  # times are rounded after the clock's offset
    assert whole["args"] == {
        "job": "job", "round": 0, "bytes": 4_000, "last_rank": 3, "waited_us": waited
    }  # fmt: skip
    assert [p["name"] for p in phases] == [
        "collecting", "waiting for rank 3", "collecting", "summing",
    ]  # fmt: skip
    durations = [100_000, 700_000, 150_000, 50_000]
    assert [p["dur"] for p in phases] == pytest.approx(durations, abs=1)
    assert whole["dur"] == pytest.approx(1_000_000, abs=1)


def test_rounds_that_overlap_are_on_tracks_of_their_own(tmp_path: Path) -> None:
    file = Timeline(str(tmp_path), 7, 0)
    for number, begin in enumerate((10.0, 10.5, 11.0, 11.5)):
        file.add(traced(number, begin, begin + 1.0))
    file.close()
    rounds = [event for event in read(file) if event["name"] == "round"]
    assert [event["tid"] for event in rounds] == [1, 2, 1, 2]


def test_a_key_has_a_bounded_number_of_tracks(tmp_path: Path) -> None:
    """Regression: the end of a round searched all tracks: 1.2 ms for 40,000."""
    file = Timeline(str(tmp_path), 7, 0)
    for number in range(200):
        file.add(traced(number, 10.0, 11.0))
    file.close()
    rounds = [event["tid"] for event in read(file) if event["name"] == "round"]
    assert len(rounds) == 200 and len(set(rounds)) == timeline.MAX_TRACKS


def test_keys_that_are_traced_no_more_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 100,000 keys were freed in one step of 55 ms when the file was full."""
    monkeypatch.setattr(timeline, "MAX_TRACED_KEYS", 2)
    file = Timeline(str(tmp_path), 7, 0)
    for number, key in enumerate("abacab"):  # "b" is forgotten before it comes again
        file.add(traced(0, 10.0 + number, 11.0 + number)._replace(key=key))
    file.close()
    rounds = [event["tid"] for event in read(file) if event["name"] == "round"]
    assert rounds == [1, 2, 1, 3, 1, 4]
    assert len(file._tracks) == 2


def test_a_file_ends_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_BYTES", 3_000)
    file = Timeline(str(tmp_path), 7, 0)
    file.add(traced(0, 10.0, 11.0))
    file.flush()
    for number in range(1, 10):
        file.add(traced(number, 10.0 + number, 11.0 + number))
    with pytest.raises(OSError, match="more than") as raised:
        file.flush()
    assert raised.value.errno == errno.EFBIG
    file.close()
    assert sum(event["name"] == "round" for event in read(file)) == 1
    assert Path(file.path).stat().st_size <= 3_010


def test_a_full_disk_cuts_no_event(tmp_path: Path) -> None:
    file = Timeline(str(tmp_path), 7, 0)
    file.add(traced(0, 10.0, 11.0))
    file.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(file.path).stat().st_size + 100, limits[1]))
    try:
        file.add(traced(1, 12.0, 13.0))
        with pytest.raises(OSError, match="File too large"):
            file.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.close()
    assert sum(event["name"] == "round" for event in read(file)) == 1


def test_two_files_of_one_name(tmp_path: Path) -> None:
    files = [Timeline(str(tmp_path), 7, 0) for _ in range(2)]
    for file in files:
        file.close()
    assert len({file.path for file in files}) == 2


def test_a_key_may_hold_what_python_takes_for_an_end_of_line(tmp_path: Path) -> None:
    event = {"name": "thread_name", "pid": 1, "args": {"name": "a\u2028b\x85c"}}
    text = f"[\n{json.dumps(event, ensure_ascii=False)},\n{json.dumps(event)}\n]\n"
    (tmp_path / "rank0.json").write_text(text, encoding="utf-8")
    merged = tmp_path / "merged" / "all.json"
    merged.parent.mkdir()
    done = run_cli("timeline", str(tmp_path), "--out", str(merged))
    assert done.returncode == 0, done.stderr
    assert json.loads(merged.read_text())["traceEvents"] == [event, event]
