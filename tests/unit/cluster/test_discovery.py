"""Discovery of reducers and ranks: the cases in tests/vectors/cluster, and the report."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from typing import Any

import pytest

from reducer.cluster import report
from reducer.cluster.discovery import discover, find_addresses
from reducer.cluster.variables import ClusterError
from tests.support.cluster import ROOT, run_cli

CASES = ROOT / "tests" / "vectors" / "cluster"
ADDRESSES = json.loads((CASES / "addresses.json").read_text())
RANKS = json.loads((CASES / "ranks.json").read_text())


def variables(case: dict[str, Any]) -> dict[str, str]:
    """The environment of a case, in which an object stands for its JSON text."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in case["environment"].items()
    }


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


@pytest.mark.parametrize("case", ADDRESSES, ids=names(ADDRESSES))
def test_reducers_are_found_as_the_plugin_finds_them(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(ClusterError) as caught:
            find_addresses(variables(case))
        text = str(caught.value)
        assert text.startswith(case["refused"])
        assert text == case["refused"] or "and more" in case
        return
    found = find_addresses(variables(case))
    assert list(found.value if found else ()) == case["addresses"]
    assert (found.source if found else None) == case.get("source")


@pytest.mark.parametrize("case", RANKS, ids=names(RANKS))
def test_ranks_are_found_in_the_order_of_the_rule(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(ClusterError) as caught:
            discover(variables(case))
        assert str(caught.value) == case["refused"]
        return
    found = dataclasses.asdict(discover(variables(case)))
    values = {name: [f["value"], f["source"]] for name, f in found.items() if f is not None}
    assert json.loads(json.dumps(values)) == case["found"]


def test_a_cluster_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        discover({}).rank = None  # type: ignore[misc]


REPLICA = {
    "CLUSTER_SPEC": json.dumps(
        {
            "cluster": {
                "workerpool0": ["primary:2222"],
                "workerpool1": ["worker-0:2222"],
                "workerpool2": ["reducer-0:2222", "reducer-1:2222"],
            },
            "task": {"type": "workerpool1", "index": 0},
        }
    )
}


def test_the_table_has_a_row_for_each_value_and_each_reducer() -> None:
    table = report.as_text(discover(REPLICA))
    assert table in (ROOT / "client" / "README.md").read_text()
    assert table.splitlines() == [
        "VALUE                             FROM",
        "role              worker          CLUSTER_SPEC",
        "own address       worker-0:2222   CLUSTER_SPEC",
        "reducers          reducer-0:2222  CLUSTER_SPEC",
        "                  reducer-1:2222",
        "job               training        CLUSTER_SPEC",
        "run id            -               (rank 0 makes one)",
        "epoch             -",
        "rank              1               CLUSTER_SPEC",
        "world size        2               CLUSTER_SPEC",
        "local rank        0               CLUSTER_SPEC",
        "local world size  1               CLUSTER_SPEC",
        "MASTER_ADDR       primary         CLUSTER_SPEC",
        "MASTER_PORT       2222            CLUSTER_SPEC",
    ]


def test_who_has_a_rank_is_a_worker() -> None:
    found = json.loads(report.as_json(discover({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})))
    assert found["role"] == {"value": "worker", "source": "SLURM_PROCID"}
    assert found["own_address"] is None


def test_the_command_prints_json_and_what_a_shell_can_evaluate() -> None:
    found = json.loads(run_cli("env", "--json", env=REPLICA).stdout)
    assert found["rank"] == {"value": 1, "source": "CLUSTER_SPEC"}
    assert found["reducers"]["value"] == ["reducer-0:2222", "reducer-1:2222"]
    assert found["epoch"] is None

    done = run_cli("env", "--shell", env={"MASTER_ADDR": "a b'; false", **REPLICA})
    shell = done.stdout
    assert not done.stderr
    script = f'eval {shlex.quote(shell)}; echo "$MASTER_ADDR|$RANK|$WORLD_SIZE|$REDUCER_ADDRS"'
    done = subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, check=True, env={}, timeout=30
    )
    assert done.stdout == "a b'; false|1|2|reducer-0:2222,reducer-1:2222\n"


def test_what_a_shell_does_not_get_is_said_where_it_is_seen() -> None:
    done = run_cli("env", "--shell", env={"RANK": "0", "WORLD_SIZE": "1"})
    assert done.stdout.splitlines() == ["export RANK=0", "export WORLD_SIZE=1"]
    assert "not found: REDUCER_ADDRS, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR" in done.stderr


@pytest.mark.parametrize(
    ("options", "environment", "text"),
    [
        ([], {"CLUSTER_SPEC": '{"cluster": 7}'}, "cluster: expected an object, got 7"),
        (["--json", "--shell"], {}, "expected one of them, got both"),
    ],
)
def test_the_command_says_what_is_wrong(
    options: list[str], environment: dict[str, str], text: str
) -> None:
    done = run_cli("env", *options, env=environment)
    assert done.returncode != 0
    assert text in done.stderr
    assert not done.stdout
