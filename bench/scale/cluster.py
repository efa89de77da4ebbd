"""Workers, lanes and the network between them; one case, simulated.

In a symmetric round all lanes do the same at the same time. So only the first `real_lanes` of them
(by the chunks that they own) are simulated, each with the sessions of all workers. The other lanes
are load: when a worker sends a chunk to a simulated lane, its NIC and CPU also carry the chunks of
the same row for the other lanes. With all lanes real there is no such assumption.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from bench.scale.clock import Clock, Core
from bench.scale.host import KERNELS, TICK_SECONDS, ZEROS, LaneHost, Prices
from bench.scale.network import Egress, Flow, Frame, Ingress
from bench.scale.outcome import Outcome, Timing, outcome_of
from bench.scale.worker import KEY, EngineWorker, ModelWorker, Worker
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.chunk_plan import make_plan
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages
from reducer.wire.checks import ChunkTable
from reducer.wire.codes import Collective, DType, MessageKind
from reducer.wire.keys import key_id

RUN_LIMIT_SECONDS = 3_600.0  # of simulated time


@dataclass(frozen=True, slots=True)
class Case:
    """The parameters of a simulation, in bytes, bytes per second and seconds.

    `memory` and `rate` are for one host of a reducer; a worker has the same `rate`.
    """

    workers: int
    reducers: int
    lanes: int = 1  # of one reducer
    real_lanes: int = 1
    round_bytes: int = 64 << 20
    table: ChunkTable = ((0, 64 << 10),)
    rate: float = 10e9 / 8
    latency: float = 25e-6
    segment: int = 4 << 10
    memory: int = 8 << 30
    credit: int = 4 << 20
    lane_prices: Prices = Prices()
    worker_prices: Prices = Prices()
    rounds: int = 2
    jitter: float = 1e-4
    seed: int = 0
    engine: bool = False

    @property
    def all_lanes(self) -> int:
        return self.reducers * self.lanes

    @property
    def ideal(self) -> float:
        """N / BW: the time to send N bytes, while receiving N bytes, at the rate of a NIC."""
        return self.round_bytes / self.rate


class Cluster:
    """One case in one run of the clock."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clock = Clock()
        count = case.round_bytes // 4
        self.plan = make_plan(Collective.ALL_REDUCE, DType.FLOAT32, count, case.workers, case.table)
        real = min(case.real_lanes, case.all_lanes, self.plan.chunks)
        lanes_by_slot = (case.lanes,) * case.reducers
        owners = Owners(Route.first(lanes_by_slot))
        self.places = [owners.owner(key_id(KEY), chunk) for chunk in range(real)]
        self.hosts = [self._host(index, *place) for index, place in enumerate(self.places)]
        self.workers = [self._worker(rank) for rank in range(case.workers)]
        self._worker_cores = [Core(self.clock) for _ in self.workers]
        self._network()
        self._random = random.Random(case.seed)
        self._awaited: set[int] = set()
        self._is_there: Callable[[Worker], bool] = lambda worker: True

    # --- parts ----------------------------------------------------------------------------------

    def _host(self, index: int, slot: int, lane: int) -> LaneHost:
        case = self.case
        settings = LaneSettings(
            lane=lane,
            lanes=case.lanes,
            incarnation=slot.to_bytes(8, "big") + lane.to_bytes(8, "big"),
            budget=case.memory // case.lanes,
            crc32c=KERNELS.crc32c,
            acc_itemsize=KERNELS.acc_itemsize,
            credit=case.credit,
            silence=1e9,
        )

        def send(rank: int, frame: Frame) -> None:
            frame.load = self._load(frame)
            self._down[index][rank].send(frame)

        crc = _zeros_crc if case.engine else lambda length: 0
        return LaneHost(self.clock, settings, case.lane_prices, send, crc)

    def _worker(self, rank: int) -> Worker:
        case = self.case
        if case.engine:
            count = case.round_bytes // 4
            return EngineWorker(rank, case.workers, case.reducers, case.table, self.places, count)
        hellos = [
            messages.Hello(
                "bench", rank, case.workers, rank.to_bytes(16, "big"), slot, case.reducers,
                "run" if rank == 0 else "", case.table if rank == 0 else (),
            )
            for slot, _ in self.places
        ]  # fmt: skip
        chunks, step = self.plan.chunks, case.all_lanes
        owned = [range(first, chunks, step) for first in range(len(self.places))]
        return ModelWorker(rank, hellos, self.plan, owned)

    def _network(self) -> None:
        """NICs and flows: `_up[rank][lane]`, `_down[lane][rank]`."""
        case, clock = self.case, self.clock
        lane_rate = case.rate / case.lanes

        def egress(rate: float, shared: bool) -> Egress:
            return Egress(clock, rate, case.latency, case.segment, shared)

        lane_in = [Ingress(clock, lane_rate, False) for _ in self.hosts]
        lane_out = [egress(lane_rate, False) for _ in self.hosts]
        worker_in = [Ingress(clock, case.rate, True) for _ in self.workers]
        worker_out = [egress(case.rate, True) for _ in self.workers]
        self._lane_in = lane_in
        self._up = [
            [self._up_flow(rank, host, worker_out[rank], nic) for host, nic in
             zip(self.hosts, lane_in, strict=True)]
            for rank in range(case.workers)
        ]  # fmt: skip
        self._down = [
            [self._down_flow(rank, lane, nic, worker_in[rank]) for rank in range(case.workers)]
            for lane, nic in enumerate(lane_out)
        ]

    def _up_flow(self, rank: int, host: LaneHost, source: Egress, target: Ingress) -> Flow:
        return Flow(
            source,
            target,
            ends=lambda frame: host.ends(rank, frame),
            begins=lambda frame: host.begins(rank, frame),
        )

    def _down_flow(self, rank: int, lane: int, source: Egress, target: Ingress) -> Flow:
        return Flow(source, target, ends=lambda frame: self._arrived(rank, lane, frame))

    def _load(self, frame: Frame) -> float:
        """The number of lanes for which this frame of a simulated lane stands."""
        simulated, lanes = len(self.places), self.case.all_lanes
        if frame.header.kind not in (MessageKind.CONTRIBUTION, MessageKind.RESULT):
            return lanes / simulated
        row_starts = frame.header.chunk // lanes * lanes
        in_row = min(lanes, self.plan.chunks - row_starts)
        return in_row / min(in_row, simulated)

    # --- what moves it --------------------------------------------------------------------------

    def _pump(self, rank: int, lane: int) -> None:
        """Send the frames that the worker may send to the lane."""
        core, flow = self._worker_cores[rank], self._up[rank][lane]
        for frame in self.workers[rank].take(lane, self.clock.now):
            frame.load = self._load(frame)
            price = self.case.worker_prices.of(frame.size) * frame.load
            self.clock.at(core.spend(price), flow.send, frame)

    def _connect(self, rank: int) -> None:
        for lane in self.workers[rank].wanted():
            self.hosts[lane].open(rank)
            self.workers[rank].opened(lane, self.clock.now)
            self._pump(rank, lane)

    def _arrived(self, rank: int, lane: int, frame: Frame) -> None:
        price = self.case.worker_prices.of(frame.size) * frame.load
        self._worker_cores[rank].submit(price, self._receive, rank, lane, frame)

    def _receive(self, rank: int, lane: int, frame: Frame) -> None:
        worker = self.workers[rank]
        worker.receive(lane, frame, self.clock.now)
        self._connect(rank)
        self._pump(rank, lane)
        if worker.refused:
            self.clock.stopped = True
        elif rank in self._awaited and self._is_there(worker):
            self._awaited.discard(rank)
            self.clock.stopped = not self._awaited

    def _tick(self, rank: int) -> None:
        self.workers[rank].tick(self.clock.now)
        for lane in range(len(self.places)):
            self._pump(rank, lane)
        self.clock.at(self.clock.now + TICK_SECONDS, self._tick, rank)

    def _submit(self, rank: int) -> None:
        self.workers[rank].submit(self.clock.now)
        lanes = len(self.places)
        for lane in range(lanes):  # each rank begins at another lane, as in the engine
            self._pump(rank, (rank + lane) % lanes)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Join, then run `rounds` rounds one after the other, each from a barrier."""
        for rank in range(self.case.workers):
            self.clock.at(0.0, self._connect, rank)
        self._run_until_all(lambda worker: worker.joined)
        join_seconds = self.clock.now
        refused = next((worker.refused for worker in self.workers if worker.refused), "")
        if refused:
            return Outcome(refused=refused, join_seconds=join_seconds)
        for host in self.hosts:
            host.start_ticking()
        for rank in range(self.case.workers):
            self.clock.at(self.clock.now + TICK_SECONDS, self._tick, rank)
        timings = [self._round(number) for number in range(1, self.case.rounds + 1)]
        queue = max(nic.peak for nic in self._lane_in)
        return outcome_of(self.hosts, timings[-1], join_seconds, int(queue))

    def _run_until_all(self, is_there: Callable[[Worker], bool]) -> None:
        self._is_there = is_there
        self._awaited = set(range(self.case.workers))
        self.clock.run(RUN_LIMIT_SECONDS)

    def _round(self, number: int) -> Timing:
        start = self.clock.now
        lanes = [host.core for host in self.hosts]
        before = [core.busy for core in (*lanes, *self._worker_cores)]
        for rank in range(self.case.workers):
            self.clock.at(start + self._random.random() * self.case.jitter, self._submit, rank)
        self._run_until_all(lambda worker: worker.finished == number)
        seconds = self.clock.now - start
        after = [core.busy for core in (*lanes, *self._worker_cores)]
        busy = [(b - a) / seconds for a, b in zip(before, after, strict=True)]
        return Timing(seconds, max(busy[: len(lanes)]), max(busy[len(lanes) :]))


@cache
def _zeros_crc(length: int) -> int:
    return KERNELS.crc32c(ZEROS[:length])
