"""Roles by flags, by TF_CONFIG and by a launcher."""

from __future__ import annotations

import argparse
import json

import pytest

from reducer_client.tables import roles
from reducer_client.tables.roles import Role

HOSTS = ["--ps_hosts=a:2222,b", "--worker_hosts=c:1,d:1,e:1"]
CLUSTER = {"ps": ["a:2222", "b"], "chief": ["c:1"], "worker": ["d:1", "e:1"]}
REDUCERS = ("a:2222", "b:2222")


def by_flags(*arguments: str) -> Role:
    parser = argparse.ArgumentParser()
    roles.add_flags(parser)
    return roles.find_role(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        ("ps", 1, Role("ps", 1, REDUCERS, 3)),
        ("worker", 0, Role("worker", 0, REDUCERS, 3)),
        ("worker", 2, Role("worker", 2, REDUCERS, 3)),
        ("chief", 0, Role("worker", 0, REDUCERS, 3)),
        ("evaluator", 0, Role("evaluator", 0, REDUCERS, 3)),
    ],
)
def test_flags(name: str, index: int, expected: Role) -> None:
    found = by_flags(*HOSTS, f"--job_name={name}", f"--task_index={index}")
    assert found == expected
    assert found.is_chief == (name in ("chief", "worker") and index == 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*HOSTS, "--job_name=boss"], "--job_name=boss: expected one of ps, worker"),
        ([*HOSTS, "--job_name=ps", "--task_index=2"], "expected 0 to 1 for --job_name=ps"),
        ([*HOSTS, "--job_name=chief", "--task_index=1"], "expected 0 to 0"),
        (["--ps_hosts=a", "--job_name=ps"], "--worker_hosts: expected host:port,host:port, got no"),
        (["--ps_hosts=a,a:2222", *HOSTS[1:], "--job_name=ps"], "a:2222 is listed twice"),
        (["--ps_hosts=a:x", *HOSTS[1:], "--job_name=ps"], "--ps_hosts: address 'a:x': port 'x'"),
    ],
)
def test_flags_that_do_not_fit(arguments: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        by_flags(*arguments)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"type": "ps", "index": 1}, Role("ps", 1, REDUCERS, 3, "training")),
        ({"type": "chief", "index": 0}, Role("worker", 0, REDUCERS, 3, "training")),
        ({"type": "worker", "index": 0}, Role("worker", 1, REDUCERS, 3, "training")),
        ({"type": "evaluator", "index": 0}, Role("evaluator", 0, REDUCERS, 3, "training")),
    ],
)
def test_tf_config(monkeypatch: pytest.MonkeyPatch, task: object, expected: Role) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task}))
    assert by_flags() == expected


def test_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give --ps_hosts, or set TF_CONFIG"):
        by_flags()
    monkeypatch.setenv("REDUCER_ADDRS", "a:2222,b")
    with pytest.raises(ValueError, match="no role: give --job_name"):
        by_flags()
    monkeypatch.setenv("REDUCER_RANK", "1")
    monkeypatch.setenv("REDUCER_WORLD_SIZE", "4")
    monkeypatch.setenv("REDUCER_JOB", "mine")
    assert by_flags() == Role("worker", 1, REDUCERS, 4, "mine")


def test_a_role_does_only_its_part() -> None:
    with pytest.raises(ValueError, match="ps 0 is a reducer"):
        Role("ps", 0, REDUCERS, 3).parameter_server()
    with pytest.raises(ValueError, match="worker is no reducer"):
        Role("worker", 0, REDUCERS, 3).serve()
