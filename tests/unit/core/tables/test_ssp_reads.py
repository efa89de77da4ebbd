"""Stale synchronous parallel: no read breaks the rule while workers come and go, and lanes die."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from reducer.wire.codes import MessageKind
from reducer.wire.table_messages import TableCall
from tests.support.counts import draws
from tests.support.ssp_world import World
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import TableWorker, describe

BOUNDS = (0, 1, 3, 10)
READS = draws(2_500, 62_500)  # with each bound, in each part: a million in the long run
PARTS = range(draws(1, 4))
ONES = np.ones(40, np.float32)
OF_WORLD = 5_000  # reads until the numbers of a world's workers are nearly used up


def compare_reads(
    reads: int, bound: int, part: int = 0, *, lanes_die: bool = False
) -> Counter[str]:
    """Let worlds go on for so many reads. Returns what has happened in them."""
    done = Counter[str]()
    seed = 1_000 * part
    while done["reads"] < reads:
        world = World(seed, bound, lanes_die=lanes_die)
        try:
            world.run(min(OF_WORLD, reads - done["reads"]))
        except AssertionError as error:
            error.add_note(f"seed {seed}, {dict(world.done)}")
            raise
        done += world.done
        seed += 1
    return done


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_no_read_breaks_the_rule_while_workers_come_and_go(bound: int, part: int) -> None:
    done = compare_reads(READS, bound, part)
    assert done["reads that name a clock"] > READS / 2
    assert min(done[what] for what in ("joins", "leaves", "deaths", "breaks")) > READS / 1_000


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("bound", BOUNDS)
def test_no_read_breaks_the_rule_while_lanes_die(bound: int) -> None:
    done = compare_reads(READS // 3, bound, lanes_die=True)
    assert done["lanes killed"] > READS / 3_000


def lead(
    lanes: TableLanes, ssp: TableCall, workers: int, term: int, *places: str, filling: bool = False
) -> list[TableWorker]:
    found = [lanes.lead(number, term, *places, filling=filling) for number in range(workers)]
    for worker in found:
        worker.table(ssp)
    return found


def refill_and_promote(lanes: TableLanes, ssp: TableCall, workers: int) -> list[TableWorker]:
    """The backup b dies, c is filled, and leads when the primary a has died, too."""
    lanes.kill("b:1")
    lead(lanes, ssp, workers, 2, "a:1", "c:1", filling=True)
    lanes.tick(1.0)
    lead(lanes, ssp, workers, 3, "a:1", "c:1")
    lanes.pump()
    lanes.kill("a:1")
    return lead(lanes, ssp, workers, 4, "c:1")


def may_read(lanes: TableLanes, worker: TableWorker, clock: int = 1) -> bool:
    worker.pull(0, clock=clock)
    lanes.pump()
    return bool(worker.take(MessageKind.VALUE))


def test_a_lane_that_was_filled_waits_for_the_slowest_worker() -> None:
    lanes = TableLanes("a:1", "b:1", "c:1")
    ssp = describe(mode="ssp", bound=0, workers=2)

    first, second, _ = lead(lanes, ssp, 3, 1, "a:1", "b:1")
    first.values(ONES)
    for worker in (first, second):
        worker.clock(1)  # the third one stays at clock 0
    lanes.pump()
    assert not may_read(lanes, first)
    first, _, third = refill_and_promote(lanes, ssp, 3)
    assert not may_read(lanes, first)
    third.clock(1)
    assert may_read(lanes, first)


def test_a_lane_that_was_filled_does_not_wait_for_a_founder_that_has_left() -> None:
    lanes = TableLanes("a:1", "b:1", "c:1")
    ssp = describe(mode="ssp", bound=0, workers=3)
    workers = lead(lanes, ssp, 3, 1, "a:1", "b:1")
    workers[0].values(ONES)
    for worker in workers:
        worker.clock(1)
    lanes.pump()
    workers[2].bye()
    first, second = refill_and_promote(lanes, ssp, 2)
    assert may_read(lanes, first)
    for worker in (first, second):
        worker.clock(2)
    lanes.pump()
    assert may_read(lanes, first, clock=2)
