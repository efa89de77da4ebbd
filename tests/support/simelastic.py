"""A simulated cluster whose workers die, stand still and are cut off, and the views of its run."""

from __future__ import annotations

from typing import Any

from tests.support.simfaults import FaultyCluster
from tests.support.simlane import SimSession


class SimRegistry:
    """One document, the newest view, changed by compare-and-set."""

    def __init__(self) -> None:
        self.epoch = 0
        self.view = b""
        self.is_up = True

    def cas(self, epoch: int, view: bytes) -> bool:
        """Decide the view of `epoch` + 1 if the newest is that of `epoch`."""
        if not self.is_up or epoch != self.epoch:
            return False
        self.epoch, self.view = epoch + 1, view
        return True


class Gone:
    """Stands where the state of a dead worker was."""

    joined = True
    error = None
    left = True

    def wanted(self) -> list[tuple[int, int]]:
        return []

    def to_drop(self) -> list[tuple[int, int]]:
        return []

    def tick(self, now: float) -> None: ...

    def leave(self, now: float) -> None: ...

    def counters(self) -> dict[str, int]:
        return {}


class ElasticCluster(FaultyCluster):
    """Rank r is the r-th state. `registry` decides the views; ranks ask it at random moments."""

    def __init__(self, world_size: int, lanes_by_slot: tuple[int, ...], **options: Any) -> None:
        super().__init__(world_size, lanes_by_slot, elastic=True, **options)
        self.registry = SimRegistry()
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self._proposals: dict[int, tuple[int, bytes]] = {}
        self.asks = 0.2  # how often, in a step, a rank asks the registry or tells it of a loss

    def kill_worker(self, rank: int) -> None:
        """SIGKILL: the bytes in flight to the lanes arrive up to a random byte."""
        for link in [link for link in self.sessions if link[0] == rank]:
            _, slot, lane = link
            session: SimSession = self.sessions.pop(link)
            if slot not in self.frozen and session.closed is None:
                last = self.states[rank].outgoing(slot, lane, 1 << 16, self.now)
                session.send(last[: self.random.randrange(len(last) + 1)])
            self._end(link, session)
        self._due = {link for link in self._due if link[0] != rank}
        self.states[rank] = Gone()
        self.dead.add(rank)
        self.stopped.discard(rank)

    def members(self, epoch: int, lost: list[tuple[int, int]]) -> list[int]:
        """The ranks of the view of `epoch`, by the losses (epoch, rank) that a later view lists."""
        gone = {rank for at, rank in lost if at <= epoch}
        return [rank for rank in range(len(self.states)) if rank not in gone]

    def step(self) -> bool:
        for rank in range(len(self.states)):
            if self._acts(rank) and self.random.random() < self.asks:
                self.decide(rank)
        return super().step()

    def decide(self, rank: int) -> None:
        """What the rank's own thread does: tell the registry of lost ranks, and take its view."""
        state, registry = self.states[rank], self.registry
        if not state.joined or state.error is not None or not registry.is_up:
            return
        epoch = state.view[-1][0] if state.view else 0
        if registry.epoch > epoch and rank not in self._proposals:
            state.install(registry.view, self.now)
            return
        proposal = self._proposals.pop(rank, None)
        lost = [each for each, _, _ in state.lost]
        if proposal is not None:
            registry.cas(*proposal)
        elif lost:  # it takes until the next time for the proposal to arrive
            self._proposals[rank] = epoch, state.view_without(lost, epoch + 1)

    def _acts(self, rank: int) -> bool:
        return rank not in self.dead and rank not in self.stopped

    def _moves(self, rank: int, slot: int) -> bool:
        return self._acts(rank) and super()._moves(rank, slot)

    def _connect(self) -> None:
        held = {link for link in self._due if link[0] in self.stopped}
        self._due -= held
        super()._connect()
        self._due |= held

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for (slot, _), lane in self.lanes.items():
            if self._runs(slot):
                lane.now = self.now
                lane.tick(0.0)
        for rank, state in enumerate(self.states):
            if self._acts(rank):
                state.tick(self.now)
