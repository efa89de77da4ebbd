"""The invariants of a storm, checked after every step (tests/faults/README.md lists them)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from reducer.core.limits.budget import SHARES_BESIDE_RANKS
from reducer.core.rounds.round import Phase
from reducer.wire.keys import position
from tests.support.simcluster import SimCluster

POSITION_BITS = 24  # of a chunk in a position

# Whether a rank holds the result of a chunk: rank, key, round, chunk.
Holds = Callable[[int, int, int, int], bool]
# How many chunks a round of a key has.
Chunks = Callable[[int, int], int]


def counts_what_it_holds(job: Any) -> None:
    """Compare the counters of a run's buffers with a walk over all buffers."""
    chunks = [c for s in job.streams for r in s.rounds for c in r.chunks.values()]
    parked = sum(len(part.view) for c in chunks for part in c.parts.values())
    made = [buffer for c in chunks for buffer in (c.acc, c.result) if buffer is not None]
    walked = (parked, parked + sum(len(buffer.view) for buffer in made))
    counted = (job.held.parked, job.held.total)
    assert counted == walked, f"I7: {counted} bytes are counted as parked and held, not {walked}"
    unstable = sum(c.cost for c in chunks if c.phase == Phase.COMPLETE)
    assert job.held.unstable == unstable, f"I7: {job.held.unstable} unstable, not {unstable}"


class Laws:
    """Checks the invariants after a step; raises AssertionError with the invariant's number."""

    def __init__(self, cluster: SimCluster, world_size: int, chunks: Chunks, holds: Holds) -> None:
        self._cluster = cluster
        self._world_size = world_size
        self._chunks = chunks
        self._holds = holds
        self._routes: dict[object, int] = {}
        self._stable: dict[tuple[object, ...], int] = {}
        self.checked = 0  # chunks whose freeing was looked at

    def check(self) -> None:
        for rank, state in enumerate(self._cluster.states):
            if state.joined:
                self._route_grows(rank, state.route["route"])
        for place, lane in self._cluster.lanes.items():
            for members in lane.core._roster.runs.values():
                self._route_grows((lane, members.run.number), members.run.route.number)
                self._stays_within_its_room(place, lane, members.run)
                counts_what_it_holds(members.run)
                for stream in members.run.streams:
                    self._stable_is_held((lane, members.run.number), stream)

    def _route_grows(self, who: object, number: int) -> None:
        before = self._routes.get(who, 0)
        assert number >= before, f"I9: {who} went back from route {before} to {number}"
        self._routes[who] = number

    def _stays_within_its_room(self, place: object, lane: Any, job: Any) -> None:
        limits = job.accounts.limits
        room = (self._world_size + SHARES_BESIDE_RANKS) * (limits.credit + limits.grant)
        held = sum(len(buffer.view) for buffer in lane.held)
        assert held <= room, f"I7: lane {place} holds {held} bytes, its job has {room}"

    def _stable_is_held(self, who: tuple[object, ...], stream: Any) -> None:
        for key in stream.keys:
            at = (*who, stream.home, stream.since, key.id)
            before = self._stable.get(at, 0)
            if key.stable <= before:
                continue
            self._stable[at] = key.stable
            for number, chunk in self._positions(key.id, before, key.stable):
                if not stream.place.owns(key.id, chunk):
                    continue
                self.checked += 1
                lacks = [
                    rank
                    for rank in range(self._world_size)
                    if not self._holds(rank, key.id, number, chunk)
                ]
                assert not lacks, (
                    f"I6: chunk {chunk} of key {key.label} round {number} is stable, and ranks "
                    f"{lacks} have no result of it, or a wrong one"
                )

    def _positions(self, key: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        for number in range(first >> POSITION_BITS, (end >> POSITION_BITS) + 1):
            for chunk in range(self._chunks(key, number)):
                if first <= position(number, chunk) < end:
                    yield number, chunk
