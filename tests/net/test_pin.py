"""`reducer serve --pin` binds each lane to a core, before the lane starts a thread."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from reducer.server.lane import process
from tests.support.cluster import Daemon, run_cli
from tests.support.wait import wait_until

CORES = os.sched_getaffinity(0)


def allowed(pid: int) -> set[str]:
    """The cores of each thread of a process, as the kernel prints them."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return {
        line.split()[1]
        for text in texts
        for line in text.splitlines()
        if line.startswith("Cpus_allowed_list:")
    }


def test_every_lane_has_a_core_of_its_own_also_after_a_restart() -> None:
    lanes = min(2, len(CORES))
    with Daemon("--pin", lanes=lanes) as daemon:
        bound = [allowed(daemon.lane_pid(lane)) for lane in range(lanes)]
        assert all(len(cores) == 1 for cores in bound)
        numbers = {int(number) for cores in bound for number in cores}
        assert len(numbers) == lanes and numbers <= CORES
        assert os.sched_getaffinity(daemon.pid) == CORES, "the main process is not bound"
        assert f"lanes are bound to cores: 0 to core {min(bound[0])}" in daemon.log
        os.kill(daemon.lane_pid(0), signal.SIGKILL)
        daemon.wait_for_log("it is started again")
        wait_until(lambda: daemon.get("/readyz")[0] == 200, 20, "lane 0 serves again")
        assert allowed(daemon.lane_pid(0)) == bound[0]


def test_without_pin_the_kernel_places_the_lanes() -> None:
    with Daemon() as daemon:
        assert os.sched_getaffinity(daemon.lane_pid(0)) == CORES


def test_more_lanes_than_cores_are_refused() -> None:
    lanes = len(CORES) + 1
    found = run_cli("serve", "--port", "0", "--lanes", str(lanes), env={"REDUCER_PIN": "1"})
    assert found.returncode == 2
    text = " ".join(found.stderr.split())
    assert f"--pin (REDUCER_PIN) binds each lane to a core of its own: --lanes {lanes}" in text
    assert f"the daemon may use {len(CORES)} (taskset, cpuset)" in text
    assert "--lanes auto" in text


def test_a_core_that_the_daemon_has_lost_is_named() -> None:
    """A cpuset may shrink before a lane is started again."""
    text = process._bind(1_023 if 1_023 not in CORES else 1_022)
    assert text.startswith("this lane cannot be bound to core 102") and "Invalid argument" in text
    assert os.sched_getaffinity(0) == CORES
    assert process._bind(None) == ""
