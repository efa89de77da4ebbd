"""What needs no GPU in the support of GPU tests: settings, counters, the proof, absent devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer_tools.nccl.versions import Version
from tests.support import cuda, gpu_job
from tests.support.gpu_job import Ended, Job
from tests.support.nccl_job import start
from tests.support.nccl_tables import CollNet
from tests.support.ranks import Tell
from tests.support.reducers import Reducers

_LINE = "CollNet 00/0 : 0 [send] via COLLNET/REDUCER/0\n"
_GOOD = Ended(values=[], contributed=10, came=10, logs=[_LINE, _LINE.replace(" 0 ", " 1 ")])


def test_ranks_on_one_gpu_are_nodes_of_their_own() -> None:
    job = Job(["a:1", "b:2"], Path("/logs"), Path())
    first, second = (gpu_job.environment(rank, job, Version(2, 18, 5)) for rank in range(2))
    assert {name for name in first if first[name] != second[name]} == {
        "NCCL_HOSTID",
        "NCCL_DEBUG_FILE",
    }
    assert first["REDUCER_ADDRS"] == "a:1,b:2"
    assert first["NCCL_COLLNET_ENABLE"] == "1"


def test_the_algorithm_is_named_as_the_version_of_nccl_wants_it() -> None:
    job = Job([], Path("/logs"), Path())
    assert gpu_job.environment(0, job, Version(2, 23, 4))["NCCL_ALGO"] == "CollNetChain"
    assert gpu_job.environment(0, job, Version(2, 24, 3))["NCCL_ALGO"] == "allreduce:collnetchain"
    unforced = replace(job, settings={"NCCL_ALGO": None, "REDUCER_MIN_BYTES": "7"})
    found = gpu_job.environment(0, unforced, Version(2, 24, 3))
    assert "NCCL_ALGO" not in found and found["REDUCER_MIN_BYTES"] == "7"


def test_bytes_through_the_reducers_prove_nothing_without_the_log() -> None:
    _GOOD.assert_through_reducers()
    for bad, why in (
        (replace(_GOOD, came=9), "9 bytes came"),
        (replace(_GOOD, came=0, contributed=0), "0 bytes came"),
        (replace(_GOOD, logs=[_LINE, "[send] via NET/REDUCER/0\n"]), "rank 1: no CollNet"),
        (replace(_GOOD, logs=[_LINE.replace("REDUCER", "SHARP")]), "rank 0: no CollNet"),
    ):
        with pytest.raises(AssertionError) as raised:
            bad.assert_through_reducers()
        assert why in str(raised.value)


def _one_sum(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    given, received = np.ones(300_000, np.float32), np.empty(300_000, np.float32)
    request = coll.all_reduce(comm, given, received, "float32", "sum")
    assert request is not None
    coll.wait(request)
    gpu_job.leave(given.nbytes, tell)


def test_the_counters_are_read_while_the_ranks_are_there(tmp_path: Path) -> None:
    job = Job([], tmp_path, Path())
    for rank in range(2):
        job.log(rank).write_text(_GOOD.logs[rank])
    with Reducers(2) as reducers:
        with start(2, reducers.addresses, _one_sum) as ranks:
            ended = gpu_job.end(ranks, 2, reducers, job)
        assert reducers.bytes_in() == 0  # the job is gone
    ended.assert_through_reducers()
    assert ended.came == ended.contributed == 2 * 4 * 300_000


class Driver:
    """A driver of CUDA that counts no device."""

    def __init__(self, result: int) -> None:
        self._result = result

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._result

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        return 0


def no_driver() -> Driver:
    raise OSError("libcuda.so.1: cannot open shared object file")


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (no_driver, "libcuda.so.1: cannot open shared object file"),
        (lambda: Driver(100), "cuInit returned CUresult 100"),
        (lambda: Driver(0), "the driver counts none"),
    ],
)
def test_the_reason_why_there_is_no_device_is_told(
    driver: Callable[[], Driver], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_driver", driver)
    assert cuda.absence() == f"no CUDA device: {why}"


def test_a_device_that_is_there_can_be_used() -> None:
    if why := cuda.absence():
        pytest.skip(why)
    assert cuda.Device(0).idle()
