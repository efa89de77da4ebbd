"""When NCCL takes the reducers on real GPUs, and when it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reducer_tools.nccl.versions import Version, from_code, tuner_needs_variable
from tests.support import gpu_job, nccl_log
from tests.support.gpu_job import Job, Member, set_up
from tests.support.libnccl import Nccl
from tests.support.plugin import NCCL_PLUGIN
from tests.support.reducers import Reducers

pytestmark = pytest.mark.gpu

SMALL, LARGE = 64 << 10, 4 << 20  # bytes
FIRST_THAT_TELLS = Version(2, 20)  # which way it takes


def _two_sizes(member: Member) -> None:
    for nbytes in (SMALL, LARGE):
        got = member.all_reduce(np.full(nbytes // 4, member.rank + 1, np.float32), "sum")
        assert (got == sum(range(1, member.world + 1))).all()


def test_without_collnet_nccl_takes_a_net_of_its_own(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    settings = {"NCCL_COLLNET_ENABLE": "0", "NCCL_ALGO": None}
    job = Job(reducers.addresses, tmp_path, library, settings)
    ended = gpu_job.run(2, reducers, job, _two_sizes)
    assert ended.came == 0
    for log in ended.logs:
        assert "the reducers are not used: NCCL_COLLNET_ENABLE is not 1" in log
        assert nccl_log.nets(log) and "REDUCER" not in nccl_log.nets(log)
        assert not set_up(log)


def test_the_tuner_gives_large_all_reduces_alone_to_the_reducers(
    library: Path, reducers: Reducers, tmp_path: Path
) -> None:
    if (version := from_code(Nccl(library).version)) < FIRST_THAT_TELLS:
        pytest.skip(f"NCCL {version} does not log which way an all-reduce takes")
    tuner = NCCL_PLUGIN.name if tuner_needs_variable(version) else None
    settings = {
        "NCCL_ALGO": None,
        "NCCL_TUNER_PLUGIN": tuner,
        "REDUCER_MIN_BYTES": str(LARGE),
    }
    job = Job(reducers.addresses, tmp_path, library, settings)
    ended = gpu_job.run(2, reducers, job, _two_sizes)
    taken = {choice.bytes: choice.algorithm for choice in nccl_log.choices(ended.logs[0])}
    assert taken[LARGE] == "collnetchain"
    assert taken[SMALL] in ("ring", "tree")
    assert ended.came >= 2 * LARGE
