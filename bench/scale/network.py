"""Hosts' NICs and the flows between them: rates both ways, latency, queues, header overhead.

TCP is not modelled: there is no slow start, no loss, no acknowledgement. A frame is cut into
segments, and the flows of a NIC take turns with one segment each. Arriving segments wait in one
unbounded queue. Its peak is recorded: a switch must buffer that many bytes, or drop them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.scale.clock import Clock
from reducer.wire.header import HEADER_SIZE, Header

# Ethernet with MTU 1500: 14 + 20 + 32 bytes of headers for 1448 bytes of a TCP stream.
PACKET_PAYLOAD = 1448
PACKET_HEADERS = 66


def wire_bytes(stream_bytes: int) -> int:
    """Bytes on the wire for the bytes of a TCP stream, with headers."""
    return stream_bytes + -(-stream_bytes // PACKET_PAYLOAD) * PACKET_HEADERS


@dataclass(slots=True)
class Frame:
    """A frame in flight; data frames have a `header.length` and no `payload`.

    `load` is the number of frames of this size that a worker's NIC and CPU carry for this frame:
    it also stands for the frames of lanes that are not simulated (see cluster.py).
    """

    header: Header
    payload: bytes | None = None
    load: float = 1.0

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.header.length


class Flow:
    """One direction of one connection."""

    __slots__ = ("_at", "_frames", "_source", "_target", "begins", "ends")

    def __init__(
        self,
        source: Egress,
        target: Ingress,
        ends: Callable[[Frame], None],
        begins: Callable[[Frame], None] | None = None,
    ) -> None:
        """`begins` is called when the first segment of a frame arrives, `ends` after the last."""
        self.begins = begins
        self.ends = ends
        self._source = source
        self._target = target
        self._frames: deque[Frame] = deque()
        self._at = 0  # bytes of the first frame that are sent

    def send(self, frame: Frame) -> None:
        self._frames.append(frame)
        if len(self._frames) == 1:
            self._source.wake(self)

    def take(self, most: int) -> tuple[Frame, int, bool, bool]:
        """The next segment: its frame, its bytes, whether it is the frame's first, and its last."""
        frame = self._frames[0]
        begun = self._at
        size = min(most, frame.size - begun)
        self._at += size
        last = self._at == frame.size
        if last:
            self._frames.popleft()
            self._at = 0
        return frame, size, begun == 0, last

    @property
    def waits(self) -> bool:
        return bool(self._frames)

    def arrive(self, frame: Frame, size: int, first: bool, last: bool) -> None:
        self._target.arrive(self, frame, size, first, last)


class Egress:
    """The sending side of a NIC; `rate` in bytes per second, `latency` to the other NIC in seconds.

    `shared`: this is the NIC of a worker, where the load of frames counts.
    """

    def __init__(
        self, clock: Clock, rate: float, latency: float, segment: int, shared: bool
    ) -> None:
        self._clock = clock
        self._rate = rate
        self._latency = latency
        self._segment = segment
        self._shared = shared
        self._turns: deque[Flow] = deque()
        self._running = False

    def wake(self, flow: Flow) -> None:
        """Start sending: the flow has something to send."""
        self._turns.append(flow)
        if not self._running:
            self._running = True
            self._turn()

    def _turn(self) -> None:
        if not self._turns:
            self._running = False
            return
        flow = self._turns.popleft()
        frame, size, first, last = flow.take(self._segment)
        wire = wire_bytes(size)
        end = self._clock.now + wire * (frame.load if self._shared else 1.0) / self._rate
        self._clock.at(end + self._latency, flow.arrive, frame, size, first, last)
        if flow.waits:
            self._turns.append(flow)
        self._clock.at(end, self._turn)


class Ingress:
    """The receiving side of a NIC, first in, first out."""

    def __init__(self, clock: Clock, rate: float, shared: bool) -> None:
        self.peak = 0.0  # most bytes that waited
        self._clock = clock
        self._rate = rate
        self._shared = shared
        self._free_at = 0.0

    def arrive(self, flow: Flow, frame: Frame, size: int, first: bool, last: bool) -> None:
        wire = wire_bytes(size)
        start = max(self._clock.now, self._free_at)
        self._free_at = start + wire * (frame.load if self._shared else 1.0) / self._rate
        self.peak = max(self.peak, (self._free_at - self._clock.now) * self._rate)
        if first and flow.begins is not None:
            self._clock.at(self._free_at, flow.begins, frame)
        if last:
            self._clock.at(self._free_at, flow.ends, frame)
