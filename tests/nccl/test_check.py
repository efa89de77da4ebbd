"""`reducer nccl check` with real reducers and plugin: each fault that makes NCCL fall back."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

from reducer import keyfile
from reducer_tools.cli import main
from reducer_tools.nccl import rdma
from reducer_tools.nccl.check import _bytes
from reducer_tools.nccl.counters import Counted, count
from reducer_tools.nccl.rank import RankSpec, StepResult
from reducer_tools.nccl.report import Report
from reducer_tools.nccl.trial import TrialError, start_trial
from tests.support.cluster import environment, run_cli
from tests.support.libraries import compile_library, nccl_of_version
from tests.support.nccl_job import start, values
from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import Tell
from tests.support.reducers import Reducers

SIZE = 1 << 20
VERSION = ("--version", "2.27.5")


@pytest.fixture(scope="module")
def reducers() -> Iterator[Reducers]:
    with Reducers(2, lanes=2) as running:
        yield running


def _metrics(reducers: Reducers, *indices: int) -> str:
    return ",".join(f"127.0.0.1:{reducers.daemon(i).metrics_port}" for i in indices)


def _environment(reducers: Reducers, **settings: str) -> dict[str, str]:
    """The environment of a working job with changes; an empty value unsets a variable."""
    working = {
        "LD_LIBRARY_PATH": str(NCCL_PLUGIN.parent),
        "NCCL_NET_PLUGIN": "reducer",
        "NCCL_COLLNET_ENABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_CONF_FILE": "/nonexistent",
        "REDUCER_ADDRS": ",".join(reducers.addresses),
    }
    return {name: value for name, value in (working | settings).items() if value}


def _check(
    env: dict[str, str], *arguments: str, version: tuple[str, ...] = VERSION
) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON output of the command in this process, which saves a start."""
    command = ("nccl", "check", "--json", *version, "--bytes", str(SIZE), *arguments)
    with patch.dict(os.environ, environment(env), clear=True):  # the command also sets variables
        done = CliRunner().invoke(main, command)
    assert done.stdout, done.stderr
    assert not done.stderr
    return done.exit_code, json.loads(done.stdout)


def _states(found: dict[str, Any]) -> dict[str, str]:
    return {row["check"]: row["state"] for row in found["checks"]}


def _row(found: dict[str, Any], check: str, state: str = "FAILED") -> dict[str, str]:
    (row,) = (r for r in found["checks"] if r["check"] == check and r["state"] == state)
    return row


# --- success ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "table"), [("2.18.3", 6), ("2.32.3", 12)])
def test_bytes_that_the_reducers_have_counted_are_the_proof(
    reducers: Reducers, version: str, table: int
) -> None:
    arguments = ("--ranks", "3")
    code, found = _check(_environment(reducers), *arguments, version=("--version", version))
    assert code == 0, found
    assert found["good"]
    assert set(_states(found)) == {
        "nccl", "environment", "library", "tables", "init", "connect", "all-reduce", "bytes",
    }  # fmt: skip
    assert str(NCCL_PLUGIN) in _row(found, "library", "ok")["result"]
    assert f"ncclCollNet v{table}" in _row(found, "tables", "ok")["result"]
    # 1 MiB of float32 and as many elements of bfloat16 from each of 3 ranks
    assert "received 4.72 MB and sent 4.72 MB" in _row(found, "bytes", "ok")["result"]
    assert "sums over 2 reducers" in found["lines"][-1]["text"]


def test_the_table_for_people_is_aligned(reducers: Reducers, tmp_path: Path) -> None:
    libnccl = nccl_of_version(tmp_path / "libnccl.so.2", 22105)
    path = f"{libnccl.parent}:{NCCL_PLUGIN.parent}"
    environment = _environment(reducers, LD_LIBRARY_PATH=path)
    done = run_cli("nccl", "check", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rest = done.stdout.splitlines()
    assert head.split() == ["CHECK", "RESULT", "WHAT", "TO", "DO"]
    table = rest[: rest.index("")]
    assert {line[: head.index("RESULT")].strip() for line in table} >= {"nccl", "bytes"}
    assert str(libnccl) in done.stdout
    assert done.stdout.endswith("\nBytes went through the reducers.\n")


# --- failures with a reason ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "check", "text", "advice"),
    [
        (
            {"NCCL_COLLNET_ENABLE": ""},
            "init",
            "NCCL_COLLNET_ENABLE is not 1",
            "NCCL_COLLNET_ENABLE",
        ),
        ({"REDUCER_ADDRS": ""}, "init", "none of REDUCER_ADDRS", "export REDUCER_ADDRS="),
        (
            {"REDUCER_WAIT": "soon"},
            "init",
            "REDUCER_WAIT='soon': expected seconds",
            "correct or unset",
        ),
        ({"LD_LIBRARY_PATH": ""}, "library", "the loader finds none", "reducer nccl env"),
        ({"NCCL_NET_PLUGIN": "other/"}, "library", "there is none", "NCCL_NET_PLUGIN=reducer"),
        (
            {"NCCL_NET_PLUGIN": "redcuer"},
            "library",
            "looks for redcuer, then libnccl-net-redcuer.so, and there is none",
            "NCCL_NET_PLUGIN=reducer",
        ),
    ],
)
def test_a_setting_that_makes_nccl_fall_back_is_named(
    reducers: Reducers, settings: dict[str, str], check: str, text: str, advice: str
) -> None:
    code, found = _check(_environment(reducers, **settings))
    row = _row(found, check)
    assert code == 1 and not found["good"]
    assert text in row["result"] and advice in row["advice"]
    assert "bytes" not in _states(found)


def test_another_net_is_named_although_the_plugin_works(reducers: Reducers) -> None:
    environment = _environment(reducers, NCCL_NET="Socket")
    code, found = _check(environment)
    assert code == 1
    assert _states(found)["bytes"] == "ok"
    assert "NCCL_NET=Socket" in _row(found, "environment")["result"]
    assert "may not: environment" in found["verdict"]


def test_nccls_own_file_of_settings_counts(reducers: Reducers, tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    file.write_text("# ours\nNCCL_COLLNET_ENABLE=1\nNCCL_NET=IB\nNCCL_NET_PLUGIN=other\n")
    settings = {"NCCL_CONF_FILE": str(file), "NCCL_COLLNET_ENABLE": ""}
    code, found = _check(_environment(reducers, **settings))
    assert code == 1
    assert _states(found)["bytes"] == "ok"
    assert "NCCL_NET=IB" in _row(found, "environment")["result"]


def test_a_library_for_other_machines_is_named(reducers: Reducers, tmp_path: Path) -> None:
    image = bytearray(NCCL_PLUGIN.read_bytes())
    image[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    (tmp_path / NCCL_PLUGIN.name).write_bytes(image)
    code, found = _check(_environment(reducers, LD_LIBRARY_PATH=str(tmp_path)))
    assert code == 1
    assert f"{NCCL_PLUGIN.name} is for riscv" in _row(found, "library")["result"]


_OTHER = 'struct { const char* name; void* rest[32]; } ncclNetPlugin_v8 = {"Other"};'
_CRASHES = "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (_OTHER, "which is the net 'Other'"),
        ("int nothing;", "which is no net plugin"),
        (_CRASHES, "ends the process that loads it"),
    ],
)
def test_a_library_that_is_not_ours_is_named(
    reducers: Reducers, tmp_path: Path, source: str, text: str
) -> None:
    compile_library(tmp_path / "libnccl-net.so", source)
    settings = {"NCCL_NET_PLUGIN": "", "LD_LIBRARY_PATH": str(tmp_path)}
    code, found = _check(_environment(reducers, **settings))
    assert code == 1
    assert text in _row(found, "library")["result"]
    assert "NCCL_NET_PLUGIN is unset" in _row(found, "library")["result"]


def test_a_plugin_that_names_no_run_is_too_old(reducers: Reducers, tmp_path: Path) -> None:
    image = NCCL_PLUGIN.read_bytes()
    assert b" reducers as run '" in image
    older = image.replace(b" reducers as run '", b" reducers as job '")
    (tmp_path / NCCL_PLUGIN.name).write_bytes(older)
    code, found = _check(_environment(reducers, LD_LIBRARY_PATH=str(tmp_path)))
    assert code == 1
    row = _row(found, "connect")
    assert "older than this command" in row["result"] and "this release" in row["advice"]


def test_reducers_that_do_not_answer_are_named(reducers: Reducers) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        settings = {"REDUCER_ADDRS": address, "REDUCER_CONNECT_TIMEOUT": "1"}
        code, found = _check(_environment(reducers, **settings))
    assert code == 1
    row = _row(found, "connect")
    assert f"no reducer answered at {address}" in row["result"]
    assert "reducer serve" in row["advice"]


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path in (right, wrong):
        keyfile.make(str(path))
    with Reducers(1, "--key-file", str(right)) as guarded:
        for key in (str(wrong), ""):
            settings = {"REDUCER_KEY_FILE": key, "REDUCER_CONNECT_TIMEOUT": "2"}
            code, found = _check(_environment(guarded, **settings))
            assert code == 1
            row = _row(found, "connect")
            assert "key" in row["result"] and "REDUCER_KEY_FILE" in row["advice"]
        code, found = _check(_environment(guarded, REDUCER_KEY_FILE=str(right)))
        assert code == 0, found


def test_a_plugin_without_mode_tls_says_so(reducers: Reducers, tmp_path: Path) -> None:
    code, found = _check(_environment(reducers, REDUCER_TLS_CERT="worker.pem"))
    row = _row(found, "init")
    assert code == 1
    assert "no mode tls: expected REDUCER_TLS_CERT to be unset" in row["result"]
    assert "mode psk" in row["advice"]


def test_less_than_an_element_proves_nothing(reducers: Reducers) -> None:
    for size in ("1", "3"):
        done = run_cli("nccl", "check", *VERSION, "-b", size, env=_environment(reducers))
        assert done.returncode == 2
        assert f"expected at least 4 bytes (an element), got '{size}'" in done.stderr
    report = Report()
    _bytes(report, ["a:1"], Counted(0, 0, {}), 0)
    assert not report.moved


@pytest.mark.parametrize("step", ["all-reduce", "close"])
def test_a_rank_whose_process_ends_is_the_culprit(
    reducers: Reducers, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for name, value in _environment(reducers).items():
        monkeypatch.setenv(name, value)
    places = [RankSpec(NCCL_PLUGIN, 10, 10, rank, 2, SIZE) for rank in range(2)]
    others = set(active_children())
    with pytest.raises(TrialError) as caught, start_trial(places, 60) as trial:
        ranks = sorted({*active_children()} - others, key=lambda process: process.pid or 0)
        trial.init()
        trial.connect()
        if step == "close":
            trial.all_reduce()
        ranks[1].kill()
        ranks[1].join()
        trial.close() if step == "close" else trial.all_reduce()
    assert caught.value.step == step
    assert caught.value.culprit.error == "the process was killed by SIGKILL"


def test_the_others_errors_are_not_the_cause() -> None:
    said = [
        StepResult("connect"),
        StepResult("connect", error="lost"),
        StepResult("connect", error="x", ended=True),
    ]
    assert TrialError("connect", said).culprit is said[2]
    assert TrialError("connect", said[:2]).culprit is said[1]


def test_rdma_that_is_lost_is_named(tmp_path: Path) -> None:
    assert not [*rdma.rows(tmp_path / "none"), *rdma.rows(tmp_path)]
    for name in ("mlx5_1", "mlx5_0"):
        (tmp_path / name).mkdir()
    (row,) = rdma.rows(tmp_path)
    assert row.state == "note"
    assert "RDMA (mlx5_0, mlx5_1) unused" in row.result


def test_nothing_is_claimed_without_the_counters() -> None:
    # Its metrics port cannot be reached at the address of its port for workers.
    with Reducers(1, "--host", "0.0.0.0", "--insecure") as quiet:
        address = quiet.addresses[0].replace("127.0.0.1", "127.0.0.2")
        code, found = _check({**_environment(quiet), "REDUCER_ADDRS": address})
    assert code == 1
    assert _states(found)["all-reduce"] == "ok"
    row = _row(found, "bytes", "unknown")
    assert address in row["result"] and "--metrics-host" in row["advice"]
    assert found["verdict"].startswith("NOT PROVEN")


def test_bytes_that_no_reducer_has_counted_prove_nothing() -> None:
    report = Report()
    _bytes(report, ["a:1"], Counted(5, 0, {}), 5)
    assert not report.moved
    assert report.rows[-1].state == "FAILED"
    assert "received 5 B and sent 0 B" in report.rows[-1].result


def _sum_and_wait(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    array = np.ones(SIZE // 4, np.float32)
    coll.wait(coll.all_reduce(comm, array, array, "float32", "sum"))
    tell(next(text for _, text in coll.lines if "as run '" in text))
    tell.hear()


def test_the_bytes_of_another_run_are_not_counted(reducers: Reducers) -> None:
    addresses = _metrics(reducers, 0, 1).split(",")
    with start(2, reducers.addresses, _sum_and_wait) as ranks:
        _, line = (ranks.receive(rank) for rank in range(2))
        run = line.split("'")[1]
        counted = count(addresses, run, 5)
        twice = count([*addresses, *(a.replace("127.0.0.1", "127.1") for a in addresses)], run, 5)
        other = count(addresses, "nccl-of-nobody", 5)
        for rank in range(2):
            ranks.send(rank)
        values(ranks.collect(30))
    assert (counted.received, counted.sent, counted.unanswered) == (2 * SIZE, 2 * SIZE, {})
    assert (twice.received, twice.sent) == (2 * SIZE, 2 * SIZE)
    assert (other.received, other.sent) == (0, 0)


def test_a_jobs_log_is_read_beside(reducers: Reducers, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("NCCL version 2.27.5+cuda12.9\nn1:1:2 [0] NCCL INFO Using network Socket\n")
    code, found = _check(_environment(reducers), "--log", str(log))
    assert code == 1
    assert _states(found)["bytes"] == "ok"
    assert "nets: Socket" in _row(found, "log")["result"]
