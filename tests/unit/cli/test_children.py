"""Worker processes of the tools end with the tool, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from reducer_tools.children import start_workers
from tests.support.cluster import alive, environment
from tests.support.wait import wait_until


def test_workers_end_when_the_tool_is_killed() -> None:
    """The workers neither read nor write, so that no broken pipe can end them."""
    script = f"from {__name__} import run_tool; run_tool()"
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True
    ) as tool:
        assert tool.stdout is not None
        workers = [int(pid) for pid in tool.stdout.readline().split()]
        assert len(workers) == 2 and all(alive(pid) for pid in workers)
        tool.kill()
    wait_until(lambda: not any(alive(pid) for pid in workers), 5, "processes left behind")


def run_tool() -> None:
    """Start two workers, print their pids, and wait."""
    with start_workers(_tell_and_sleep, [(60,), (60,)]) as workers:
        print(*(connection.recv() for _, connection in workers), flush=True)
        time.sleep(60)


def _tell_and_sleep(connection: Connection, seconds: float) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    connection.send(os.getpid())
    time.sleep(seconds)
