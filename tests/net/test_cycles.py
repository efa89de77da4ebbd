"""A lane process runs no garbage collection while it serves a run, and one when no run is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from tests.support.cluster import ROOT, Daemon
from tests.support.wait import wait_until
from tests.support.worker import Worker

# Each garbage collection after the start of a process, which ends with gc.freeze(), writes a line:
# its generation and what it found. Python 3.12 has frozen some objects before.
WATCH = """
import gc, json, os
before = gc.get_freeze_count()
def note(phase, info):
    if phase == "stop" and gc.get_freeze_count() > before:
        with open(os.path.join(os.environ["CYCLES"], str(os.getpid())), "a") as file:
            print(json.dumps(info), file=file)
gc.callbacks.append(note)
"""


def test_all_objects_are_looked_at_when_nobody_is_served(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "client")])
    with Daemon(env={"PYTHONPATH": paths, "CYCLES": str(tmp_path)}) as daemon:
        file = tmp_path / str(daemon.lane_pid(0))
        with Worker(daemon.port, "busy", 0, 1) as busy:
            busy.join()
            with Worker(daemon.port, "job", 0, 1) as worker:
                worker.join()
                worker.bye()
            for key in range(200):  # objects that stay alive
                busy.all_reduce(f"x{key}", 0, np.ones(8, np.float32))
            busy.poll(0.5)  # lets the lane tick
            assert not file.exists()
            busy.bye()
        wait_until(file.exists, 5, "a collection")
        daemon.stats()
        assert json.loads(file.read_text()) == {"generation": 2, "collected": 0, "uncollectable": 0}
