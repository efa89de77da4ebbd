"""What `bench.training.overlap` finds in traces: spans of each kind, and what is at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.training.overlap import STEP, SUFFIX, Spans, format_spans, read, union

BASE = 1_790_000_000  # seconds: a trace of torch counts from here, a timeline from 1970


def _event(category: str, name: str, begin: float, end: float) -> dict[str, Any]:
    """An event of a trace; the moments are milliseconds."""
    return {"ph": "X", "cat": category, "name": name, "ts": 1e3 * begin, "dur": 1e3 * (end - begin)}


# One step of 100 ms: 40 of kernels, two copies out, one back. The second step is idle.
EVENTS = [
    _event("user_annotation", STEP, 1000, 1100),
    _event("user_annotation", STEP, 1100, 1200),
    _event("gpu_user_annotation", STEP, 1000, 1300),
    _event("cpu_op", "aten::mm", 1000, 1001),
    _event("kernel", "gemm", 1000, 1030),
    _event("kernel", "gemm", 1020, 1040),
    _event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1010, 1020),
    _event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1030, 1050),
    _event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 1060, 1070),
    _event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1060, 1080),
]


def _write(folder: Path, name: str, events: list[dict[str, Any]]) -> None:
    trace = {"baseTimeNanoseconds": BASE * 10**9, "traceEvents": events}
    with gzip.open(folder / f"{name}{SUFFIX}", "wt", encoding="utf-8") as file:
        json.dump(trace, file)


def _timeline(folder: Path, *phases: tuple[str, float, float]) -> None:
    """The timeline of a rank that was killed: no bracket at the end."""
    lines = [
        json.dumps(
            {"ph": "X", "name": name, "ts": (BASE + ms / 1e3) * 1e6, "dur": 1e3 * (end - ms)}
        )
        for name, ms, end in phases
    ]
    (folder / "training-rank0-host-1.json").write_text("[" + ",\n".join(lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _write(tmp_path, "reducers", EVENTS)
    _write(tmp_path, "nccl", [*EVENTS[:5], _event("kernel", "ncclDevKernel_AllReduce", 1015, 1060)])
    # Before the steps, queued before and in them, around the end of them, after them.
    _timeline(
        tmp_path,
        *(("sending", 900.0, 990.0), ("queued", 995.0, 1015.0), ("sending", 1015.0, 1035.0)),
        *(("receiving", 1035.0, 1070.0), ("waiting", 1190.0, 1250.0), ("sending", 1400.0, 1500.0)),
    )
    return tmp_path


def _by_name(folder: Path) -> dict[str, Spans]:
    return {spans.name: spans for spans in read(folder)}


def test_spans_are_clipped_to_the_steps_and_count_once(folder: Path) -> None:
    spans = _by_name(folder)["reducers"]
    assert [1e3 * end for _, end in spans.steps] == pytest.approx([100.0, 200.0])
    found = {kind: spans.seconds(kind) for kind in ("kernels", "out", "network", "back")}
    expected = {"kernels": 0.04, "out": 0.03, "network": 0.065, "back": 0.02}
    assert found == pytest.approx(expected, abs=1e-5)


def test_what_is_at_once_is_seen(folder: Path) -> None:
    spans = _by_name(folder)["reducers"]
    assert spans.both(["kernels"], ["out", "back"]) == pytest.approx(0.02, abs=1e-5)
    assert spans.both(["out"], ["network"]) == pytest.approx(0.025, abs=1e-5)
    assert spans.both(["network"], ["back"]) == pytest.approx(0.01, abs=1e-5)
    assert spans.both(["out"], ["back"]) == pytest.approx(0.0, abs=1e-5)


def test_the_kernels_of_nccl_are_network(folder: Path) -> None:
    spans = _by_name(folder)["nccl"]
    assert spans.seconds("kernels") == pytest.approx(0.03, abs=1e-5)
    assert spans.both(["kernels"], ["network"]) == pytest.approx(0.015, abs=1e-5)


def test_the_table_has_a_line_for_each_contender(folder: Path) -> None:
    lines = format_spans(folder).splitlines()
    # Of two steps: 100 ms each, half of the 40, 30, 65 and 20 ms, and of what is at once.
    cells = "100.0 20.0 15.0 32.5 10.0 40.0 38% 12.5 5.0"
    assert " ".join(lines[-1].split()) == f"reducers {cells}"


def test_a_trace_without_a_device_says_so(tmp_path: Path) -> None:
    _write(tmp_path, "gloo", EVENTS[:2])
    assert "no GPU" in format_spans(tmp_path)


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no .trace.json.gz in it"):
        read(tmp_path)


def test_touching_spans_are_one() -> None:
    assert union([(2.0, 3.0), (0.0, 1.0), (1.0, 2.0), (5.0, 6.0)]) == [(0.0, 3.0), (5.0, 6.0)]
