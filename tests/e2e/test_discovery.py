"""Hosts, as network namespaces, that find each other by nothing but their CLUSTER_SPEC."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reducer_tools.netlab import Lab, LabError, Nic
from tests.support.cluster import ROOT, Daemon, environment

pytest.importorskip("torch")

POOLS = {"primary": "workerpool0", "worker": "workerpool1", "reducer": "workerpool2"}
PORTS = {"primary": 2222, "worker": 2222, "reducer": 4321}
SERVE = [sys.executable, "-m", "reducer", "serve"]
TRAIN = ["sh", "-ec", 'eval "$("$0" -m reducer env --shell)"; exec "$0" -m "$1"']
TRAIN += [sys.executable, "tests.support.replica_worker"]
# The name of a machine resolves to its address; here the name is the address.
NAMED = ["unshare", "--uts", "sh", "-ec", 'hostname "$0"; exec "$@"']


@pytest.mark.long  # 16 CPU seconds; tests/unit/cluster tests the rules of discovery
def test_ddp_trains_on_hosts_that_know_nothing_but_their_cluster_spec() -> None:
    try:
        with Lab(dict.fromkeys(POOLS, Nic())) as lab:
            _train(lab)
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")


# For replicas with several GPUs, as in client/README.md; $0 is Python.
TORCHRUN = """
eval "$("$0" -m reducer env --shell)"
exec "$0" -m torch.distributed.run --nnodes "$WORLD_SIZE" --node-rank "$RANK" \\
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --nproc-per-node 2 "$1"
"""
SUM = """
import numpy, reducer_client, sys
with reducer_client.connect() as group:
    total = group.all_reduce(numpy.full(3, group.rank + 1.0), op="sum").wait(60)
    line = f"{group.job} {group.rank} {group.world_size} {total.tolist()}\\n"
    sys.stdout.write(line)  # at once, also unbuffered: both ranks share the pipe
"""


@pytest.mark.long  # 28 s for torchrun; tests/unit/cluster has the order of the sources
def test_the_ranks_of_torchrun_come_before_that_of_the_replica(tmp_path: Path) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM, encoding="utf-8")
    with Daemon() as daemon, _kept_port() as master:
        pools = {"workerpool0": [f"127.0.0.1:{master}"], "workerpool2": [daemon.address]}
        spec = {"cluster": pools, "task": {"type": "workerpool0", "index": 0}}
        done = subprocess.run(
            ["sh", "-ec", TORCHRUN, sys.executable, str(script)],
            env={**environment(), "CLUSTER_SPEC": json.dumps(spec), "PYTHONWARNINGS": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"training {rank} 2 [3.0, 3.0, 3.0]" for rank in range(2)
    ]


@contextmanager
def _kept_port() -> Iterator[int]:
    """A loopback port on which a child can listen, and which no other process gets meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def _train(lab: Lab) -> None:
    with _start(lab, "reducer", SERVE) as reducer:
        assert reducer.stdout is not None
        ready = json.loads(reducer.stdout.readline())
        assert (ready["host"], ready["port"], ready["mode"]) == ("0.0.0.0", 4321, "open")
        with _start(lab, "primary", TRAIN) as primary, _start(lab, "worker", TRAIN) as worker:
            found = [json.loads(_output(process)) for process in (primary, worker)]
        reducer.terminate()
        _, log = reducer.communicate(timeout=30)
        assert reducer.returncode == 0, log
        assert "without authentication" in log
    parameters = 4 * (20 * 64 + 64 + 64 * 3 + 3)
    for rank, line in enumerate(found):
        assert (line["rank"], line["world"], line["job"]) == (rank, 2, "training")
        assert line["bytes"] == 5 * parameters
        assert line["reducers"] == line["gloo"] == found[0]["gloo"]


@contextmanager
def _start(lab: Lab, host: str, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    addresses = {pool: f"{lab.address(name)}:{PORTS[name]}" for name, pool in POOLS.items()}
    spec = {
        "cluster": {pool: [address] for pool, address in addresses.items()},
        "environment": "cloud",
        "task": {"type": POOLS[host], "index": 0},
        "job": "{}",
    }
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}",
        "CLUSTER_SPEC": json.dumps(spec),
    }
    process = lab.popen(
        host,
        [*NAMED, lab.address(host), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _output(process: subprocess.Popen[str]) -> str:
    output, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return output
