"""Tables that are lost with their reducers, and restored from a checkpoint in another run.

The loss is exactly the updates that the checkpoint does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import reducer_client
from reducer_client.errors import StateLostError
from reducer_client.tables import ParameterServer, Receipt, Table
from reducer_client.tables.checkpoints import load as load_images
from tests.support.cluster import Daemon
from tests.support.reducers import Reducers
from tests.support.tables import LEDGER, flat, integers, zeros
from tests.support.wait import wait_until

SECONDS = 30.0
EVERY_STEPS = 8  # from one checkpoint to the next
AFTER = 3  # receipts of each worker that come after the last checkpoint
SEEDS = 10_000  # of each worker
Sums = npt.NDArray[np.float64]  # of pushes; a row for each number of pushes
Values = npt.NDArray[np.float32]
Receipts = list[list[Receipt]]  # of each worker, in the order of its pushes


@dataclass(frozen=True)
class Place:
    """The reducers of a job, and how workers reach its tables there."""

    job: str
    reducers: Reducers
    options: dict[str, Any]

    def connect(self, worker: int, run_id: str) -> ParameterServer:
        return reducer_client.parameter_server(
            self.reducers.addresses,
            job=self.job,
            run_id=run_id,
            worker=worker,
            timeout=SECONDS,
            **self.options,
        )

    def lose(self, victims: Sequence[int]) -> None:
        """Kill these reducers at once; they start again, without tables."""
        for victim in victims:
            self.reducers.strike(victim)
        for victim in victims:
            self.reducers.kill(victim)
            self.reducers.start(victim)


@pytest.fixture(params=[0, 1], ids=["no backups", "a backup of each part"])
def place(request: pytest.FixtureRequest, tmp_path: Path, job: str) -> Iterator[Place]:
    replicas = int(request.param)
    with ExitStack() as stack:
        reducers = stack.enter_context(Reducers(2 + replicas))
        options: dict[str, Any] = {}
        if replicas:
            keeper = stack.enter_context(Daemon("--registry", str(tmp_path / "registry")))
            options = {"replicas": replicas, "registry": keeper.address}
        yield Place(job, reducers, options)


def push_until_lost(table: Table, worker: int, receipts: list[Receipt]) -> StateLostError:
    """Push integers, and wait for each receipt, until the table is lost."""
    try:
        while True:
            push = table.push(integers(SEEDS * worker + len(receipts)))
            receipts.append(push.wait())
            assert receipts[-1].outcome == "applied"
    except StateLostError as error:
        return error


def train_until_lost(place: Place, folder: Path, victims: Sequence[int]) -> Receipts:
    """Two workers push, and one saves from time to time. Then reducers are lost."""
    receipts: Receipts = [[], []]

    def has_more(than: Sequence[int]) -> bool:
        return all(len(each) >= n + AFTER for each, n in zip(receipts, than, strict=True))

    with (
        place.connect(0, "first") as one,
        place.connect(1, "first") as two,
        ThreadPoolExecutor(2) as pool,
    ):
        tables = [ps.table("net", zeros(), optimizer=LEDGER) for ps in (one, two)]
        supervisor = one.supervise(folder, every_steps=EVERY_STEPS)
        ends = [
            pool.submit(push_until_lost, table, worker, receipts[worker])
            for worker, table in enumerate(tables)
        ]
        wait_until(lambda: (supervisor.saved or 0) > EVERY_STEPS, SECONDS, "two checkpoints")
        supervisor.stop()
        so_far = [len(each) for each in receipts]
        wait_until(lambda: has_more(so_far), SECONDS, "receipts after the checkpoint")
        place.lose(victims)
        for end in ends:
            assert "lost" in str(end.result(SECONDS))
    return receipts


def sums_of(worker: int, pushes: int) -> Sums:
    """The parameters after the first 0, 1, 2 ... pushes of a worker alone."""
    gradients = [flat(integers(SEEDS * worker + number)) for number in range(pushes)]
    return -np.cumsum([flat(zeros()), *gradients], axis=0)


def find_pushes(values: Values, version: int, sums: tuple[Sums, Sums]) -> tuple[int, int]:
    """How many pushes of each worker these values are the sum of, to the unit.

    A shard applies the pushes of a worker in their order.
    """
    one, two = sums
    for first in range(version + 1):
        second = version - first
        exist = first < len(one) and second < len(two)
        if exist and np.array_equal(one[first] + two[second], values):
            return first, second
    raise AssertionError(f"no {version} pushes give these values")


def check_pushes(receipts: list[Receipt], of_shards: list[int], versions: list[int]) -> None:
    """The checkpoint has the pushes whose receipts name its versions, and lacks the others.

    ``of_shards``: how many pushes of the worker each shard has.
    """
    for number, receipt in enumerate(receipts, 1):
        least, greatest = receipt.versions
        if greatest <= min(versions):
            assert number <= min(of_shards), f"push {number} was saved, and is lost"
        if least > max(versions):
            assert number > max(of_shards), f"push {number} came after the checkpoint, and is in it"


def test_lost_are_exactly_the_updates_after_the_checkpoint(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    holders = range(1 + place.options.get("replicas", 0))  # of one part of the table
    receipts = train_until_lost(place, folder, holders)
    (saved,) = load_images(folder)
    versions: list[int] = saved.state["versions"]
    with place.connect(0, "again") as ps:
        table = ps.load(folder)["net"]
        restored = flat(table.pull())
        sums = sums_of(0, len(receipts[0])), sums_of(1, len(receipts[1]))
        parts = [table.layout.place(shard) for shard in range(table.layout.shards)]
        found = [
            find_pushes(restored[part], version, (sums[0][:, part], sums[1][:, part]))
            for part, version in zip(parts, versions, strict=True)
        ]
        for worker, each in enumerate(receipts):
            check_pushes(each, [pushes[worker] for pushes in found], versions)
            assert max(pushes[worker] for pushes in found) < len(each), "nothing was lost"
        # The next run goes on from there.
        table.push(integers(2 * SEEDS)).wait()
        assert np.array_equal(flat(table.pull()), restored - flat(integers(2 * SEEDS)))
