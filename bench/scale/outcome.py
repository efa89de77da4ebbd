"""The outcome of a case, read from the simulated lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.scale.host import LaneHost
from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.header import HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Timing:
    """The last round: its seconds, and the share of them in which the busiest core worked."""

    seconds: float
    lane_busy: float
    worker_busy: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Bytes, seconds and counts; with several simulated lanes, the maximum over the lanes.

    `refused` is the reason if the lane did not admit the job; the other fields are then unset.
    Counts are for one lane over all rounds. `core_us` is the time of a call of the real core on
    this machine, by event.
    """

    refused: str = ""
    join_seconds: float = 0.0
    timing: Timing = Timing(0.0, 0.0, 0.0)
    reserved: int = 0
    budget: int = 0
    peak: int = 0
    credit: int = 0
    grant: int = 0
    sessions: int = 0
    queue_peak: int = 0  # before the NIC of a lane
    welcome_bytes: int = 0
    frames_in: dict[str, int] = field(default_factory=dict)
    frames_out: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    contribution_us: float = 0.0
    chunk_us: float = 0.0
    core_us: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.timing.seconds


# Calls of the core on the data path. The other calls (ticks, the join) are counted apart.
_DATA_EVENTS = ("admit", "Contributed", "Reduced")


def outcome_of(
    hosts: Sequence[LaneHost], timing: Timing, join_seconds: float, queue_peak: int
) -> Outcome:
    host = max(hosts, key=lambda host: host.peak)
    data = sum(host.times.seconds[event] for host in hosts for event in _DATA_EVENTS)
    contributions = sum(host.times.calls["Contributed"] for host in hosts)
    chunks = sum(host.chunks for host in hosts)
    welcome = messages.decode(messages.Welcome, host.welcome[HEADER_SIZE:])
    snapshot = host.lane.snapshot()
    return Outcome(
        join_seconds=join_seconds,
        timing=timing,
        reserved=snapshot.reserved_bytes,
        budget=snapshot.budget_bytes,
        peak=host.peak,
        credit=welcome.credit,
        grant=welcome.grant,
        sessions=snapshot.sessions,
        queue_peak=queue_peak,
        welcome_bytes=len(host.welcome),
        frames_in=_by_name(host.frames_in),
        frames_out=_by_name(host.frames_out),
        chunks=host.chunks,
        contribution_us=1e6 * data / max(1, contributions),
        chunk_us=1e6 * data / max(1, chunks),
        core_us={
            event: 1e6 * seconds / host.times.calls[event]
            for event, seconds in host.times.seconds.items()
        },
    )


def _by_name(frames: dict[int, int]) -> dict[str, int]:
    return {MessageKind(kind).name.lower(): count for kind, count in sorted(frames.items())}
