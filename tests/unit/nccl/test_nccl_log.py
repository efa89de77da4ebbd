"""What `reducer nccl check` reads from the environment and from a job's NCCL log."""

from __future__ import annotations

import re

import pytest

from reducer_tools.nccl.blockers import environment_rows
from reducer_tools.nccl.job_log import read, rows
from reducer_tools.nccl.report import Report, Row, as_json, as_text
from reducer_tools.nccl.versions import parse_version

P = "node1:5425:5439 [0] NCCL INFO "
GOOD = [
    "NCCL version 2.27.5+cuda12.9",
    P + "Successfully loaded external network plugin /usr/local/lib/libnccl-net-reducer.so",
    P + "NET/REDUCER : REDUCER_ADDRS: reducers at r0:2222,r1:2222",
    P + "Initialized NET plugin REDUCER",
    P + "Assigned NET plugin REDUCER to comm",
    P + "Using network REDUCER",
    P + "CollNet 00/0 : 0 [send] via COLLNET/REDUCER/0",
    P + "CollNet 00/0 : 0 [receive] via COLLNET/REDUCER/0",
    P + "CollNet 00/0 : 1 [send] via COLLNET/REDUCER/0",
]
CHOSEN = P + "AllReduce: 4194304 Bytes -> Algo COLLNET_CHAIN proto SIMPLE channel{Lo..Hi}={0..1}"
RING = P + "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"


def _rows(*lines: str) -> list[Row]:
    return list(rows(read(lines)))


def test_a_log_of_a_job_over_the_reducers_is_good() -> None:
    first, second = _rows(*GOOD, CHOSEN, RING, CHOSEN)
    assert first.state == second.state == "ok"
    assert "by ranks 0, 1; nets: REDUCER (2x)" in first.result
    assert second.result == "2 of 3 all-reduces in the log went through CollNet; others: 1 RING"


def test_set_up_is_not_taken_for_used() -> None:
    assert [row.state for row in _rows(*GOOD)] == ["ok", "note"]
    assert "does not say which" in _rows(*GOOD)[1].result
    assert [row.state for row in _rows(*GOOD, RING, RING)] == ["ok", "FAILED"]
    old = P + "4194304 Bytes -> Algo 3 proto 2 time 12.5"
    assert [row.state for row in _rows(*GOOD, old)] == ["ok", "ok"]


@pytest.mark.parametrize(
    "line",
    [
        "NET/REDUCER : the reducers are not used: NCCL_COLLNET_ENABLE is not 1",
        "NET/REDUCER : rank 1 of 2 cannot use the reducers: no reducer answered at r0:2222",
        "NET/Plugin: Could not find: reducer libnccl-net-reducer.so. Using internal plugin.",
        "NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5).",
        "External network plugin libnccl-net-reducer.so is unsupported",
        "NET/Plugin: No plugin found (libnccl-net-reducer.so)",
        "NET/Plugin : Plugin load (libnccl-net-reducer.so) returned 2 : cannot open",
        "Cannot initialize CollNet, using point-to-point network instead",
        "Communicator has 1 nodes which is less than CollNet node threshold 2, disabling CollNet",
        "NCCL_NET set by environment to Socket.",
    ],
)
def test_a_fallback_is_named_with_its_reason(line: str) -> None:
    first, reason = _rows("NCCL version 2.27.5", P + "Using network Socket", P + line, P + line)
    assert (first.state, reason.state) == ("FAILED", "FAILED")
    assert "did not use the reducers; nets: Socket (1x)" in first.result
    text = re.sub("^NET/(REDUCER|Plugin) ?: ", "", line)
    assert reason.result == f"{text} (2 such lines)" and reason.advice


def test_the_name_that_nccl_tries_first_is_no_reason() -> None:
    tried = P + "NET/Plugin: No plugin found (reducer)"
    assert [row.state for row in _rows("NCCL version 2.21.5", tried)] == ["FAILED"]
    assert [row.state for row in _rows(*GOOD, tried)] == ["ok", "note"]


def test_a_log_that_says_nothing_proves_nothing() -> None:
    (row,) = _rows("step 1 loss 0.5", "step 2 loss 0.4")
    assert row.state == "FAILED" and "NCCL_DEBUG=INFO" in row.advice
    (row,) = _rows("NCCL version 2.27.5+cuda12.9")
    assert row.state == "FAILED" and "NCCL_DEBUG_SUBSYS" in row.advice


@pytest.mark.parametrize(
    ("settings", "version", "state", "text"),
    [
        ({}, "2.27.5", "FAILED", "NCCL_COLLNET_ENABLE is unset"),
        ({"NCCL_COLLNET_ENABLE": "0"}, "2.27.5", "FAILED", "NCCL_COLLNET_ENABLE is '0'"),
        ({"NCCL_NET": "Socket"}, "2.27.5", "FAILED", "NCCL_NET=Socket selects another net"),
        ({"NCCL_NET": "reducer"}, "2.27.5", "ok", "NCCL_NET=reducer"),
        ({"NCCL_ALGO": "Ring,Tree"}, "2.27.5", "FAILED", "leaves CollNet out"),
        ({"NCCL_ALGO": "Ring,CollNetChain"}, "2.27.5", "ok", ""),
        ({"NCCL_ALGO": "^CollNetChain,CollNetDirect"}, "2.27.5", "FAILED", "leaves CollNet out"),
        ({"NCCL_ALGO": "^Ring"}, "2.27.5", "ok", ""),
        ({"NCCL_ALGO": "broadcast:ring;allreduce:collnetchain"}, "2.27.5", "ok", ""),
        ({"NCCL_ALGO": "ring;allreduce:collnetchain"}, "2.27.5", "ok", ""),
        ({"NCCL_ALGO": "broadcast:ring;allreduce:tree"}, "2.27.5", "FAILED", "leaves CollNet"),
        ({"NCCL_ALGO": "CollNetChain"}, "2.27.5", "note", "collectives other than all-reduce"),
        ({"NCCL_ALGO": "CollNetChain"}, "2.21.5", "ok", ""),
        ({"NCCL_PROTO": "LL"}, "2.27.5", "FAILED", "no protocol but Simple"),
        ({"NCCL_PROTO": "^LL"}, "2.27.5", "ok", ""),
        ({"NCCL_TUNER_PLUGIN": "none"}, "2.27.5", "note", "another tuner than"),
        ({}, "2.18.3", "FAILED", "NCCL_COLLNET_ENABLE is unset"),
        ({"NCCL_COLLNET_ENABLE": "1"}, "2.18.3", "note", "has no tuner"),
        ({"NCCL_COLLNET_ENABLE": "1"}, "2.20.5", "note", "only in NCCL_TUNER_PLUGIN"),
        ({"NCCL_TUNER_PLUGIN": "libnccl-net-reducer.so"}, "2.20.5", "ok", ""),
        ({"NCCL_TUNER_PLUGIN": "/l/libnccl-net-reducer.so"}, "2.27.5", "ok", ""),
    ],
)
def test_an_environment_that_keeps_nccl_away_is_named(
    settings: dict[str, str], version: str, state: str, text: str
) -> None:
    enabled = (
        {} if not settings or "NCCL_COLLNET_ENABLE" in settings else {"NCCL_COLLNET_ENABLE": "1"}
    )
    found = environment_rows(enabled | settings, parse_version(version))
    assert [row.state for row in found if text in row.result][-1:] == [state], found
    assert all(row.advice for row in found if row.state != "ok")


def test_the_verdict_is_good_only_with_counted_bytes_and_nothing_bad() -> None:
    report = Report()
    report.add("init", "ok", "willing")
    assert not report.good and report.verdict.startswith("NOT PROVEN")
    report.moved = True
    assert report.good
    report.add("environment", "FAILED", "word " * 30, "advice " * 12)
    assert not report.good and "a job's bytes may not: environment" in report.verdict
    head, *table, _, verdict = as_text(report).splitlines()
    column = head.index("WHAT TO DO")
    assert all(line[column - 1 : column] in ("", " ") for line in table)
    assert verdict == as_json(report)["verdict"]
