"""Tables that are saved and go on elsewhere, bit for bit; and the commands that do so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.optimizers import SGD, Adam, Optimizer
from reducer_client.tables import SSP, ParameterServer, Table
from reducer_client.tables.checkpoints import CheckpointError
from tests.support.cluster import run_cli
from tests.support.tables import LEDGER, flat, floats, integers, ledger, stepped, zeros

STEPS = 3  # before the save, and as many after it
RATE = 0.003


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    with reducer_client.local_reducers(3, lanes=2) as started:
        yield started


def connect(addresses: list[str], job: str, run_id: str, **options: Any) -> ParameterServer:
    return reducer_client.parameter_server(
        addresses, job=job, run_id=run_id, worker=0, workers=1, timeout=20.0, **options
    )


def go(table: Table, seeds: range) -> None:
    for seed in seeds:
        push = table.push(floats(seed))
        table.pull()
        assert push.wait().outcome == "applied"


@pytest.mark.parametrize("mode", ["async", "sync", SSP(2)], ids=str)
@pytest.mark.parametrize(
    "optimizer",
    [Adam(0.01, convention="torch"), SGD(0.1, convention="keras", momentum=0.9)],
    ids=lambda optimizer: optimizer.NAME,
)
def test_a_table_goes_on_bit_for_bit_on_fewer_and_on_more_reducers(
    addresses: list[str], job: str, tmp_path: Path, optimizer: Optimizer, mode: Any
) -> None:
    with connect(addresses[:2], job, "first") as ps:
        table = ps.table("net", floats(99), optimizer=optimizer, mode=mode)
        table.lr = RATE
        go(table, range(STEPS))
        path = ps.save(tmp_path)
        go(table, range(STEPS, 2 * STEPS))
        expected = stepped(optimizer, floats(99), [(floats(s), RATE) for s in range(2 * STEPS)])
        assert flat(table.pull()).tobytes() == expected.tobytes()
    assert path.name == f"step-{STEPS}"
    for count in (1, 3):
        with connect(addresses[:count], job, f"on {count}") as ps:
            restored = ps.load(tmp_path)["net"]
            assert restored.version == restored.step == STEPS and restored.lr == RATE
            assert restored.mode == table.mode and restored.optimizer == optimizer
            go(restored, range(STEPS, 2 * STEPS))
            assert flat(restored.pull()).tobytes() == expected.tobytes()


def test_a_worker_without_the_checkpoint_attaches_and_must_pull_first(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    with connect(addresses, job, "first") as ps:
        go(ps.table("net", zeros(), optimizer=LEDGER, mode="sync"), range(STEPS))
        ps.save(tmp_path)
    with connect(addresses, job, "again") as ps:
        ps.load(tmp_path)
        with connect(addresses, job, "again") as other:  # takes the place of the first
            table = other.attach("net")
            assert table.push(integers(1)).wait().outcome == "dropped"
            table.pull()
            assert table.push(integers(2)).wait().version == STEPS + 1


def test_a_save_without_tables_and_a_load_of_nothing_say_so(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    with connect(addresses, job, "") as ps:
        with pytest.raises(CheckpointError, match="no table to save"):
            ps.save(tmp_path)
        with pytest.raises(CheckpointError):
            ps.load(tmp_path / "nothing")


def test_tables_are_listed_saved_and_loaded_by_commands(
    addresses: list[str], job: str, tmp_path: Path
) -> None:
    reach = ("--addresses", ",".join(addresses[:2]), "--job", job)
    with connect(addresses[:2], job, "first") as ps:
        table = ps.table("net", zeros(), optimizer=LEDGER)
        for seed in range(STEPS):
            table.push(integers(seed)).wait()
        listed = run_cli("table", "ls", *reach, "--run-id", "first", "--json")
        (row,) = json.loads(listed.stdout)
        assert (row["name"], row["version"], row["optimizer"]) == ("net", STEPS, "sgd")
        saved = run_cli("table", "save", str(tmp_path), *reach, "--run-id", "first")
        assert saved.returncode == 0 and "saved 1 table" in saved.stdout, saved.stderr
    loaded = run_cli("table", "load", str(tmp_path), *reach, "--run-id", "again")
    assert loaded.returncode == 0 and "loaded 1 table" in loaded.stdout, loaded.stderr
    with connect(addresses[:2], job, "again") as ps:
        parameters = flat(ps.attach("net").pull())
        assert np.array_equal(parameters, ledger(zeros(), map(integers, range(STEPS))))
    wrong = run_cli("table", "ls", "--addresses", "127.0.0.1:1", "--job", job, "--timeout", "0.2")
    assert wrong.returncode == 1 and "cannot be reached" in wrong.stderr
    assert "Traceback" not in wrong.stderr
