"""A simulated cluster whose reducers die, freeze, restart and drain, and whose links break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reducer.core.surface import events
from tests.support.simcluster import OF_THE_JOB, SimCluster
from tests.support.simlane import SimLane, SimSession

NEW_INCARNATIONS = True  # False: a restarted process looks like the one before
_FIRST_RETRY, _LAST_RETRY = 0.05, 1.0
_NO_ANSWER = 2.0  # the engine's timeout for an address
Link = tuple[int, int, int]  # rank, slot, lane


@dataclass
class _Dial:
    at: float
    backoff: float = _FIRST_RETRY


class FaultyCluster(SimCluster):
    """Slot s is the s-th reducer of every rank. A fault lasts until it is undone."""

    def __init__(self, world_size: int, lanes_by_slot: tuple[int, ...], **options: Any) -> None:
        super().__init__(world_size, lanes_by_slot, **options)
        self.lanes_by_slot = lanes_by_slot
        self.frozen: set[int] = set()
        self.cut_off: set[tuple[int, int]] = set()  # (rank, slot) without traffic
        self._options = options
        self._dials: dict[Link, _Dial] = {}
        self._due: set[Link] = set()
        self._closed: list[
            tuple[int, int, SimSession]
        ] = []  # the lane does not know of these ends yet
        self._starts = 0
        self._bodies: dict[tuple[int, int, int, int], int] = {}
        self._held_in: dict[tuple[int, int, int, int], int] = {}
        for lane in self.lanes.values():
            lane.bodies, lane.held_in = self._bodies, self._held_in

    # --- faults ---------------------------------------------------------------------------------

    def is_up(self, slot: int) -> bool:
        return (slot, 0) in self.lanes

    def kill(self, slot: int) -> None:
        """SIGKILL: the bytes in flight to the workers arrive up to a random byte."""
        for link in [link for link in self.sessions if link[1] == slot]:
            self._break(link, "connection reset")
        for lane in range(self.lanes_by_slot[slot]):
            del self.lanes[slot, lane]
        self.frozen.discard(slot)

    def start(self, slot: int) -> None:
        """Start a new process at the same address, with empty memory."""
        self._starts += NEW_INCARNATIONS
        keep = {name: value for name, value in self._options.items() if name not in OF_THE_JOB}
        for lane in range(self.lanes_by_slot[slot]):
            born = SimLane(
                self._options.get("kernels"),
                lane=lane,
                lanes=self.lanes_by_slot[slot],
                incarnation=self._incarnation(slot, lane),
                **keep,
            )
            born.now = self.now
            born.bodies, born.held_in = self._bodies, self._held_in
            self.lanes[slot, lane] = born

    def _incarnation(self, slot: int, lane: int) -> bytes:
        if not self._starts:
            return bytes([slot, lane]) * 8  # as in SimCluster
        return bytes([slot, lane]) + self._starts.to_bytes(14, "little")

    def drain(self, slot: int) -> None:
        for lane in range(self.lanes_by_slot[slot]):
            self.lanes[slot, lane].feed(events.Drain("SIGTERM"))

    def drained(self, slot: int) -> bool:
        return all(
            self.lanes[slot, lane].core.drained(self.now)
            for lane in range(self.lanes_by_slot[slot])
        )

    def reset(self, link: Link) -> None:
        """Break the connection at a random byte in both directions."""
        self._break(link, "connection reset")

    def isolate(self, rank: int, *slots: int) -> None:
        """No byte passes between the rank and these slots."""
        self.cut_off |= {(rank, slot) for slot in slots}

    def heal(self) -> None:
        """End all faults."""
        self.frozen.clear()
        self.cut_off.clear()
        for slot in range(len(self.lanes_by_slot)):
            if not self.is_up(slot):
                self.start(slot)

    def _break(self, link: Link, why: str) -> None:
        rank, slot, lane = link
        session = self.sessions.pop(link)
        last_words = session.take(self.random.randrange(len(session.outbox) + 1))
        if last_words:
            self.states[rank].incoming(slot, lane, last_words, self.now)
        self.states[rank].closed(slot, lane, why, self.now)
        self._end(link, session)

    def _end(self, link: Link, session: SimSession) -> None:
        """End a session. The worker redials at once if the lane had welcomed it, else later."""
        self._closed.append((link[0], link[1], session))
        if session.welcomed:
            self._dials.pop(link, None)

    # --- the links --------------------------------------------------------------------------------

    def step(self) -> bool:
        for rank, state in enumerate(self.states):
            for slot, lane in state.to_drop():
                session = self.sessions.pop((rank, slot, lane), None)
                if session is not None:
                    self._end((rank, slot, lane), session)
                state.closed(slot, lane, "dropped", self.now)
        for rank, slot, session in [end for end in self._closed if self._hears(*end[:2])]:
            self._closed.remove((rank, slot, session))
            if session.lane in self.lanes.values():
                session.disconnect("the worker closed the connection")
        return super().step()

    def _runs(self, slot: int) -> bool:
        return slot not in self.frozen

    def _moves(self, rank: int, slot: int) -> bool:
        return self._hears(rank, slot)

    def _hears(self, rank: int, slot: int) -> bool:
        """Whether the reducer's machine learns that a connection of the rank has ended."""
        return slot not in self.frozen and (rank, slot) not in self.cut_off

    def _connect(self) -> None:
        for rank, state in enumerate(self.states):
            for slot, lane in state.wanted():
                self._due.add((rank, slot, lane))
        for link in sorted(self._due):
            dial = self._dials.setdefault(link, _Dial(self.now))
            if self.now >= dial.at:
                self._dial(link, dial)

    def _dial(self, link: Link, dial: _Dial) -> None:
        rank, slot, lane = link
        state = self.states[rank]
        self._due.remove(link)
        dial.backoff = min(2 * dial.backoff, _LAST_RETRY)
        if (rank, slot) in self.cut_off:
            dial.at = self.now + _NO_ANSWER
            state.unreachable(slot, lane, "no answer", self.now)
        elif not self.is_up(slot):
            dial.at = self.now + dial.backoff
            state.unreachable(slot, lane, "connection refused", self.now)
        else:
            dial.at = self.now + dial.backoff
            self.sessions[link] = self.lanes[slot, lane].connect()
            state.opened(slot, lane, self.now)
