"""A table of mode ssp on simulated lanes, with workers that come, go and die at random.

Worker n pushes gradients that are 1 at element n and 0 elsewhere. So the values of a read tell how
many pushes of each worker they contain, and each read is compared with the rule: at clock c it has
all that each worker pushed before it ended its clock c - bound. Partitions have backups.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from reducer.wire import messages
from reducer.wire.codes import Flag, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.keys import key_id
from reducer.wire.table_messages import Notice
from tests.support.table_lanes import TableLanes
from tests.support.table_worker import TableWorker, describe

SHARD = 128  # elements, and so the most workers of a world
SHARDS = 8
PARTITIONS = 2
ADDRESSES = ("a:1", "b:1")
FOUNDERS = 2
MOST = 8  # workers at a time
SPEEDS = (0.02, 0.3, 1.0)  # a slow worker falls behind as far as it may
LOST = 0.5  # seconds without a connection after which a worker is taken out
Values = np.ndarray[tuple[int], np.dtype[np.float32]]
ZEROS: Values = np.zeros(SHARD, np.float32)


@dataclass
class Part:
    """Where a partition lives. ``filling``: the backup is a spare."""

    number: int
    primary: str
    backup: str
    term: int = 1
    filling: bool = False

    @property
    def shards(self) -> list[int]:
        return [s for s in range(SHARDS) if (key_id("net") + s) % PARTITIONS == self.number]


class Link:
    """A worker's connection to a partition. ``waiting``: what was sent and has not arrived.

    ``is_seated``: the lane counts the worker. ``seat``: the clock at which the lane took it in; of
    clocks up to that, the lane promises nothing. ``broken_at``: when the connection was lost;
    inf while it stands.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.lane_side: TableWorker | None = None
        self.waiting: deque[Callable[[], object]] = deque()
        self.is_seated = False
        self.seat = 0
        self.broken_at = math.inf
        self.reading: set[int] = set()  # shards
        self.receipts = dict.fromkeys(part.shards, 0)  # the last one of each shard

    def take(self) -> list[Frame]:
        """What the lane has sent."""
        if self.lane_side is None:
            return []
        frames, self.lane_side.frames = self.lane_side.read(), []
        return frames

    def send(self, frame: Callable[[TableWorker], None]) -> None:
        """Behind all that is on its way. Lost if the connection is lost before it arrives."""
        self.waiting.append(lambda: None if self.lane_side is None else frame(self.lane_side))


@dataclass
class Worker:
    """``at_clock``: how many pushes came before the worker ended a clock."""

    number: int
    speed: float
    links: list[Link]
    clock: int = 0
    pushes: int = 0
    at_clock: dict[int, int] = field(default_factory=dict)
    read_clock: int = 0
    is_alive: bool = True

    @property
    def is_idle(self) -> bool:
        has_seats = all(link.is_seated for link in self.links)
        return self.is_alive and has_seats and not any(link.reading for link in self.links)

    @property
    def gradient(self) -> Values:
        gradient = ZEROS.copy()
        gradient[self.number] = 1
        return gradient

    def advance(self, clock: int) -> None:
        """The worker has ended clocks up to this one."""
        for each in range(self.clock + 1, clock + 1):
            self.at_clock[each] = self.pushes
        self.clock = clock


class World:
    """``run`` lets it go on for a number of reads. ``done`` counts what has happened."""

    def __init__(self, seed: int, bound: int, *, lanes_die: bool = False) -> None:
        self.done: Counter[str] = Counter()
        self.lanes = TableLanes(*ADDRESSES, budget=1 << 30)
        self._rng = random.Random(seed)
        self._bound = bound
        self._lanes_die = lanes_die
        self._now = 0.0
        self._parts = [Part(n, ADDRESSES[n], ADDRESSES[1 - n]) for n in range(PARTITIONS)]
        self._workers: list[Worker] = []
        self._started = 0
        self._description = describe(
            mode="ssp", bound=bound, workers=FOUNDERS, count=SHARD * SHARDS, shard=SHARD,
            partitions=PARTITIONS,
        )  # fmt: skip
        for _ in range(FOUNDERS):
            self._join()
        while any(link.waiting for worker in self._workers for link in worker.links):
            self._deliver()
        self.lanes.pump()
        self._look()
        self.lanes.pump()  # the first values are on the backups, too

    def run(self, reads: int) -> None:
        """Until so many reads were compared, or no number is left for another worker."""
        actions = {
            self._deliver: 100.0, self._work: 60.0, self._tick: 3.0, self._reconnect: 6.0,
            self._join: 0.6, self._break: 0.6, self._die: 0.25, self._leave: 0.25,
            self._kill_lane: 0.6 if self._lanes_die else 0.0,
        }  # fmt: skip
        names, weights = [*actions], [*actions.values()]
        while self.done["reads"] < reads and self._started < SHARD:
            for action in self._rng.choices(names, weights, k=100):
                action()

    # --- actions --------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """One frame arrives, at one lane."""
        links = [(w, each) for w in self._workers for each in w.links if each.waiting]
        if not links:
            return
        _, link = self._rng.choice(links)
        link.waiting.popleft()()
        if self._rng.random() < 0.8:  # else the backup is slow
            self.lanes.pump()
        self._look()

    def _work(self) -> None:
        idle = [worker for worker in self._workers if worker.is_idle]
        if not idle:
            return
        (worker,) = self._rng.choices(idle, [each.speed for each in idle])
        for action in self._rng.choice(
            [[self._read], [self._push], [self._push, self._end_clock, self._read]]
        ):
            action(worker)

    def _read(self, worker: Worker) -> None:
        worker.read_clock = worker.clock
        for link in worker.links:
            link.reading.update(link.part.shards)
            self._ask(worker, link)

    def _push(self, worker: Worker) -> None:
        worker.pushes += 1
        for link in worker.links:
            for shard in link.part.shards:
                self._send_push(worker, link, shard, worker.pushes)

    def _end_clock(self, worker: Worker) -> None:
        worker.advance(worker.clock + 1)
        for link in worker.links:
            self._tell_clock(worker, link)

    def _tick(self) -> None:
        seconds = self._rng.uniform(0.01, 0.1)
        self._now += seconds
        for worker in self._workers:
            for link in worker.links:
                if link.lane_side is not None and worker.is_alive:
                    link.lane_side.beat()
        for lane in self.lanes.lanes.values():
            lane.stand_still(seconds)
        self.lanes.pump()
        self._look()
        self._workers = [w for w in self._workers if w.is_alive or self._is_needed(w)]

    def _is_needed(self, worker: Worker) -> bool:
        return any(link.waiting or self._counts(link) for link in worker.links)

    def _join(self) -> None:
        alive = [worker for worker in self._workers if worker.is_alive]
        if len(alive) >= MOST or self._started >= SHARD:
            return
        worker = Worker(
            self._started, self._rng.choice(SPEEDS), [Link(part) for part in self._parts]
        )
        self._started += 1
        self._workers.append(worker)
        for link in worker.links:
            self._connect(worker, link)
        self.done["joins"] += 1

    def _reconnect(self) -> None:
        for worker in self._workers:
            for link in worker.links:
                is_broken = worker.is_alive and link.lane_side is None and not link.waiting
                if is_broken and self._rng.random() < 0.5:
                    self._connect(worker, link)

    def _break(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self._lose(self._rng.choice(worker.links))
            self.done["breaks"] += 1

    def _die(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.is_alive = False
            for link in worker.links:
                self._lose(link)
            self.done["deaths"] += 1

    def _leave(self) -> None:
        worker = self._some_worker()
        if worker is None:
            return
        worker.is_alive = False
        for link in worker.links:
            link.send(lambda _, link=link: self._say_bye(link))  # type: ignore[misc]
        self.done["leaves"] += 1

    def _some_worker(self) -> Worker | None:
        """One that may go: another one stays."""
        alive = [worker for worker in self._workers if worker.is_alive]
        return self._rng.choice(alive) if len(alive) > FOUNDERS else None

    def _kill_lane(self) -> None:
        """A lane dies, and another one starts in its place, to which its partitions are copied."""
        if any(part.filling for part in self._parts):
            return
        victim = self._rng.choice(ADDRESSES)
        self.lanes.kill(victim)
        self.lanes.start(victim).now = self._now
        for part in self._parts:
            part.primary = part.backup if part.primary == victim else part.primary
            part.backup = victim
            self._move(part, filling=True)
        self.done["lanes killed"] += 1

    def _move(self, part: Part, *, filling: bool) -> None:
        part.term += 1
        part.filling = filling
        for worker in self._workers:
            self._lose(worker.links[part.number])

    # --- a worker's side of a connection --------------------------------------------------------

    def _connect(self, worker: Worker, link: Link) -> None:
        """Open, describe the table, and send all again that has no answer."""
        link.waiting.append(lambda: self._open(worker, link))
        for shard in link.part.shards:
            for number in range(link.receipts[shard] + 1, worker.pushes + 1):
                self._send_push(worker, link, shard, number)
        if worker.clock:
            self._tell_clock(worker, link)
        self._ask(worker, link)

    def _open(self, worker: Worker, link: Link) -> None:
        part = link.part
        known = {"partition": part.number, "partitions": PARTITIONS}
        side = link.lane_side = self.lanes.lead(
            worker.number, part.term, part.primary, part.backup, filling=part.filling, **known
        )
        side.description = self._description
        side.call(replace(self._description, partition=part.number))

    def _send_push(self, worker: Worker, link: Link, shard: int, number: int) -> None:
        def arrive(side: TableWorker) -> None:
            side.push(shard, worker.gradient, number, 0, done=link.receipts[shard])

        link.send(arrive)

    def _tell_clock(self, worker: Worker, link: Link) -> None:
        clock = worker.clock
        link.send(lambda side: side.clock(clock))

    def _ask(self, worker: Worker, link: Link) -> None:
        least = max(0, worker.read_clock - self._bound)
        for shard in sorted(link.reading):
            link.send(lambda side, shard=shard: side.pull(shard, clock=least))  # type: ignore[misc]

    def _say_bye(self, link: Link) -> None:
        assert link.lane_side is not None
        link.lane_side.bye()
        link.is_seated, link.lane_side = False, None

    def _lose(self, link: Link) -> None:
        """The connection ends with all that is on its way."""
        if link.lane_side is not None:
            link.lane_side.lose()
            link.broken_at = min(link.broken_at, self._now)
        link.lane_side = None
        link.waiting.clear()

    # --- what the lanes answer ------------------------------------------------------------------

    def _look(self) -> None:
        for worker in self._workers:
            for link in worker.links:
                for frame in link.take():
                    self._take(worker, link, frame)

    def _take(self, worker: Worker, link: Link, frame: Frame) -> None:
        kind = frame.header.kind
        if kind == MessageKind.RECEIPT:
            shard = frame.header.chunk
            link.receipts[shard] = max(link.receipts[shard], frame.header.round)
        elif kind == MessageKind.VALUE:
            self._compare(worker, link, frame)
        elif kind == MessageKind.NOTICE:
            notice = messages.decode(Notice, frame.payload or b"")
            assert not notice.code, notice.message
            if notice.call == "filled" and notice.term == link.part.term and link.part.filling:
                self._move(link.part, filling=False)
            elif notice.call == "table" and frame.header.key:
                self._take_seat(worker, link, notice)
        else:
            assert kind == MessageKind.HEARTBEAT, (kind, bytes(frame.payload or b""))

    def _take_seat(self, worker: Worker, link: Link, notice: Notice) -> None:
        """The lane has answered the description of the table."""
        if link.lane_side is None:
            return
        if not self._counts(link):
            link.seat = notice.clock
        link.is_seated, link.broken_at = True, math.inf
        if notice.missing:
            for shard in link.part.shards:
                link.lane_side.push(shard, ZEROS, 0, flags=int(Flag.VALUES))
        if notice.clock > worker.clock:  # this worker is seated there at once, and so everywhere
            worker.advance(notice.clock)
            for each in worker.links:
                self._tell_clock(worker, each)

    # --- the rule -------------------------------------------------------------------------------

    def _counts(self, link: Link) -> bool:
        """Whether the lane must still wait for the worker."""
        return link.is_seated and self._now < link.broken_at + LOST

    def _compare(self, reader: Worker, link: Link, frame: Frame) -> None:
        link.reading.discard(frame.header.chunk)
        least = reader.read_clock - self._bound
        has = -np.frombuffer(frame.payload or b"", "<f4")
        assert frame.header.done >= least, f"clock {frame.header.done}, wanted {least}"
        own = link.receipts[frame.header.chunk]
        assert has[reader.number] >= own, "a read lacks a push that has a receipt"
        for worker in self._workers:
            other = worker.links[link.part.number]
            if least > other.seat and self._counts(other):
                assert worker.clock >= least, f"did not wait for worker {worker.number}"
                missing = worker.at_clock[least] - has[worker.number]
                assert missing <= 0, f"{missing:.0f} pushes of worker {worker.number} are missing"
        self.done["reads"] += 1
        self.done["reads that name a clock"] += least > 0
