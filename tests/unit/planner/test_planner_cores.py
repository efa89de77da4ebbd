"""Cores that the bytes keep busy, at a worker and at a reducer."""

from __future__ import annotations

import pytest

from reducer_tools.planner import cores
from reducer_tools.planner.plan import Cluster
from tests.support.planner import plan, planned

MODEL = ("--workers", "8", "--worker-gbps", "100", "--reducer-gbps", "32")


@pytest.mark.parametrize(
    ("reducers", "worker_gigabytes", "reducer_gigabytes"),
    [
        (25, 12.5, 4.0),  # 100 / 8 GB/s; 8 x 12.5 / 25
        (50, 12.5, 2.0),
        (10, 5.0, 4.0),  # 10 x 32 / 8 = 40 Gbit/s for a worker; the NICs of the reducers are full
    ],
)
def test_cores_by_hand(reducers: int, worker_gigabytes: float, reducer_gigabytes: float) -> None:
    cluster = Cluster(workers=8, worker_gbps=100, reducer_gbps=32, gradient_bytes=1 << 30)
    assert cluster.worker_cores(reducers) == pytest.approx(
        [worker_gigabytes * price for price in cores.WORKER]
    )
    assert cluster.reducer_cores(reducers) == pytest.approx(
        [reducer_gigabytes * price for price in cores.REDUCER]
    )


def test_a_plan_names_the_cores() -> None:
    shown = plan(*MODEL).output
    found = planned(*MODEL)
    assert f"cores of a worker        {cores.describe(tuple(found['worker_cores']))}\n" in shown
    assert f"cores of a reducer       {cores.describe(tuple(found['reducer_cores']))}\n" in shown
    assert found["reducer_cores"][0] < found["worker_cores"][0]
