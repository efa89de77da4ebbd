"""Cores that the bytes keep busy, at a worker and at a reducer."""

from __future__ import annotations

import pytest

from reducer_tools.planner import cores
from reducer_tools.planner.plan import Cluster
from tests.support.planner import plan, planned

MODEL = ("--workers", "8", "--worker-gbps", "100", "--reducer-gbps", "32")


@pytest.mark.parametrize(
    ("reducers", "client_gigabytes", "hosted_gigabytes", "reducer_gigabytes"),
    [
        (25, 12.5, 0.0, 4.0),  # 100 / 8 GB/s; 8 x 12.5 / 25
        (50, 12.5, 0.0, 2.0),
        # A ring's 1.75 times the array at 12.5 GB/s; the hosted reducers sum all of the array.
        (0, 12.5 / 1.75, 12.5 / 1.75, 0.0),
        # 1.30x as fast as a ring; the NICs of the reducers are full and take 10 x 4 / 8 = 5 GB/s.
        (10, 12.5 / 1.75 * 1.3, 12.5 / 1.75 * 1.3 - 5.0, 4.0),
    ],
)
def test_cores_by_hand(
    reducers: int, client_gigabytes: float, hosted_gigabytes: float, reducer_gigabytes: float
) -> None:
    cluster = Cluster(workers=8, worker_gbps=100, reducer_gbps=32, gradient_bytes=1 << 30)
    assert cluster.choice(10).speedup == pytest.approx(1.3)
    assert cluster.worker_cores(reducers) == pytest.approx(
        [
            client_gigabytes * client + hosted_gigabytes * hosted
            for client, hosted in zip(cores.WORKER, cores.REDUCER, strict=True)
        ]
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
    assert "of a reducer" not in plan(*MODEL, "--reducers", "0").output
