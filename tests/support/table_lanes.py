"""Several lanes in this process, with the links that they open to each other."""

from __future__ import annotations

import random
from typing import Any

from reducer.core.surface import events
from tests.support.simlane import SimLane, SimSession
from tests.support.table_worker import TableWorker

EVERYTHING = 1 << 30


class TableLanes:
    """Lanes by address. `pump` carries the frames between them; `cut` are addresses that cannot be
    reached, and whose links carry nothing.
    """

    def __init__(self, *addresses: str, **settings: Any) -> None:
        self.lanes: dict[str, SimLane] = {}
        self.cut: set[str] = set()
        self._starts = 0
        self._settings = settings
        self._links: list[tuple[str, SimSession, str, SimSession]] = []
        for address in addresses:
            self.start(address)

    def start(self, address: str) -> SimLane:
        """Start a lane, or another one in the place of one that was killed."""
        self._starts += 1
        incarnation = self._starts.to_bytes(16, "little")
        self.lanes[address] = SimLane(incarnation=incarnation, **self._settings)
        return self.lanes[address]

    def kill(self, address: str) -> None:
        """The process ends: its links break."""
        dead = self.lanes.pop(address)
        for link in [link for link in self._links if address in (link[0], link[2])]:
            self._links.remove(link)
            for session in (link[1], link[3]):
                if session.lane is not dead:
                    session.disconnect("reset")

    def break_links(self) -> None:
        """All links end, with what is on its way."""
        links, self._links = self._links, []
        for _, out, _, back in links:
            out.disconnect("reset")
            back.disconnect("reset")

    def lead(
        self, worker: int, term: int, primary: str, backup: str = "", *, filling: bool = False,
        **known: object,
    ) -> TableWorker:  # fmt: skip
        """A worker that opens the partition at its primary, as a layout says."""
        fields: dict[str, object] = {"partitions": 1, **known, "term": term}
        fields["reducer"] = self.lanes[primary].settings.incarnation
        if backup:
            fields["backup"] = backup
            fields["backup_reducer"] = self.lanes[backup].settings.incarnation
            fields["filling"] = filling
        return TableWorker(self.lanes[primary], worker, **fields)

    def links_of(self, address: str) -> int:
        """How many links lead to this lane."""
        return sum(far == address for _, _, far, _ in self._links)

    def pump(self, rng: random.Random | None = None, *, backwards: bool = True) -> None:
        """Carry everything; with `rng`, some of it; without `backwards` no answer of a backup."""
        moved = True
        while moved:
            moved = self._dial()
            for near, out, far, back in list(self._links):
                if near in self.cut or far in self.cut:
                    continue
                most = EVERYTHING if rng is None else rng.randrange(200_000)
                for source, target in ((out, back), (back, out)):
                    if source is back and not backwards:
                        continue
                    data = source.take(most)
                    if data:
                        target.send(data)
                        moved = rng is None
                self._end_closed((near, out, far, back))

    def _end_closed(self, link: tuple[str, SimSession, str, SimSession]) -> None:
        _, out, _, back = link
        if out.closed is None and back.closed is None:
            return
        if out.closed is None:
            out.send(back.take(EVERYTHING))  # the last frames
        self._links.remove(link)
        out.disconnect("closed")
        back.disconnect("closed")

    def _dial(self) -> bool:
        found = False
        for address, lane in list(self.lanes.items()):
            dials, lane.dials = lane.dials, []
            for dial in dials:
                found = True
                if dial.address in self.cut or address in self.cut:
                    lane.dials.append(dial)
                    found = False
                elif dial.address in self.lanes:
                    back = self.lanes[dial.address].connect()
                    self._links.append((address, lane.link(dial), dial.address, back))
                else:
                    lane.feed(events.DialFailed(dial.link, f"{dial.address} refused"))
        return found

    def tick(self, seconds: float) -> None:
        end = seconds
        while end > 0:
            for lane in self.lanes.values():
                lane.tick(0.05)
            self.pump()
            end -= 0.05

    def held(self) -> int:
        return sum(len(lane.held) for lane in self.lanes.values())
