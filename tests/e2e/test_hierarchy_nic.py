"""On two hosts of two ranks, each with its own NIC, the hierarchy halves the NIC's traffic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from reducer_tools.netlab import Lab, LabError, Nic
from tests.support.cluster import ROOT

pytest.importorskip("torch")

from tests.support.host_worker import ELEMENTS, STEPS

HOSTS, LOCAL = 2, 2
PAYLOAD = ELEMENTS * 4 * STEPS


@pytest.mark.long  # 19 CPU seconds; tests/e2e/test_hierarchy.py checks the sums
def test_a_nic_carries_gradients_once_and_runs_have_the_same_bits(tmp_path: Path) -> None:
    try:
        with Lab(dict.fromkeys(("host0", "host1", "reducer"), Nic())) as lab:
            lines = _run(lab, tmp_path / "store")
    except LabError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert [line["layouts"] for line in lines] == [[[HOSTS, LOCAL], [HOSTS, LOCAL], None]] * 4
    assert len({line[run]["digest"] for line in lines for run in ("first", "again")}) == 1
    assert len({line["flat"]["digest"] for line in lines}) == 1
    for line in lines:
        # Two or three rounding errors of sums of standard normal numbers.
        assert all(line[run]["error"] < 1e-6 for run in ("first", "again", "flat"))
        for way in ("tx", "rx"):
            assert PAYLOAD < line["first"][way] < 1.1 * PAYLOAD
            for run in ("first", "again"):
                assert line[run][way] / line["flat"][way] == pytest.approx(0.5, rel=0.05)


def _run(lab: Lab, store: Path) -> list[dict[str, Any]]:
    serve = [sys.executable, "-m", "reducer", "serve", "--host", lab.address("reducer")]
    serve += ["--port", "0", "--metrics-port", "0", "--insecure"]
    with _started(lab, "reducer", serve, {}) as daemon, ExitStack() as stack:
        assert daemon.stdout is not None
        address = f"{lab.address('reducer')}:{json.loads(daemon.stdout.readline())['port']}"
        workers = []
        for rank in range(HOSTS * LOCAL):
            ranks = {"RANK": rank, "WORLD_SIZE": HOSTS * LOCAL}
            ranks |= {"LOCAL_RANK": rank % LOCAL, "LOCAL_WORLD_SIZE": LOCAL}
            command = [sys.executable, "-m", "tests.support.host_worker", str(store)]
            env = {name: str(number) for name, number in ranks.items()} | {"REDUCER_ADDRS": address}
            host = f"host{rank // LOCAL}"
            workers.append(stack.enter_context(_started(lab, host, command, env)))
        lines = [json.loads(_output(worker)) for worker in workers]
        daemon.terminate()
        _, log = daemon.communicate(timeout=30)
        assert daemon.returncode == 0, log
    return lines


@contextmanager
def _started(
    lab: Lab, host: str, command: Sequence[str], env: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    paths = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
    pipe = subprocess.PIPE
    process = lab.popen(host, command, env=paths | env, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _output(process: subprocess.Popen[str]) -> str:
    output, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    return output
