"""A lane on its host: the real core, with sizes instead of memory and a price for its CPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

from bench.scale.clock import Clock, Core
from bench.scale.network import Frame
from reducer import kernels
from reducer.core.lane import Lane
from reducer.core.surface import events
from reducer.core.surface.settings import LaneSettings
from reducer.server.data.buffers import size_class
from reducer.wire.codes import MAX_CHUNK_BYTES, MessageKind
from reducer.wire.header import HEADER_SIZE, NO_RANK, unpack_header
from reducer.wire.sizes import result_bytes

KERNELS = kernels.load()
ZEROS = memoryview(bytes(MAX_CHUNK_BYTES * 2))
TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Prices:
    """CPU time that the shell and the kernel take.

    `s_per_gb`: seconds for 1e9 bytes received and sent back; `frame`: seconds per frame, in or out.
    """

    s_per_gb: float = 0.0
    frame: float = 0.0

    def of(self, size: int) -> float:
        """Seconds for one frame of `size` bytes, one way."""
        return size * self.s_per_gb / 2e9 + self.frame


class SizedBuffer:
    """A Buffer of the core without memory: only a size."""

    __slots__ = ("size", "view")

    def __init__(self, length: int) -> None:
        self.size = size_class(length)
        self.view = ZEROS[: self.size]


@dataclass
class CoreTimes:
    """CPU seconds of the real core on this machine, and the number of calls.

    The time is the thread's, so that other processes do not count. It includes half a microsecond
    per call for reading the clock.
    """

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, since: float) -> None:
        self.seconds[what] += thread_time() - since
        self.calls[what] += 1


class LaneHost:
    """One lane. A rank's session has the rank's number; `send(session, frame)` sends a frame."""

    def __init__(
        self,
        clock: Clock,
        settings: LaneSettings,
        prices: Prices,
        send: Callable[[int, Frame], None],
        result_crc: Callable[[int], int],
    ) -> None:
        self.lane = Lane(settings)
        self.core = Core(clock)
        self.times = CoreTimes()
        self.held = 0  # bytes of buffers in use
        self.peak = 0
        self.frames_in: Counter[int] = Counter()  # by kind
        self.frames_out: Counter[int] = Counter()
        self.chunks = 0
        self.welcome = b""  # the last one that was sent
        self._clock = clock
        self._prices = prices
        self._send = send
        self._result_crc = result_crc
        self._placed: dict[int, list[events.Contributed]] = {}
        self._actions: dict[type[Any], Callable[[Any], events.Effect | None]] = {
            events.Send: self._on_send,
            events.Fold: self._on_fold,
            events.Finish: self._on_finish,
            events.Free: self._on_free,
            events.Close: lambda close: None,
            events.Log: lambda log: None,
        }

    # --- the worker's frames --------------------------------------------------------------------

    def open(self, session: int) -> None:
        self._placed[session] = []
        self._feed(events.Opened(session))

    def begins(self, session: int, frame: Frame) -> None:
        """The header has arrived: take memory, as the shell does before it reads the payload."""
        if frame.header.kind != MessageKind.CONTRIBUTION or not frame.header.length:
            return
        since = thread_time()
        admission = self.lane.admit(session, frame.header, 0)
        self.times.add("admit", since)
        buffer = self._take(frame.header.length)
        self._placed[session].append(events.Contributed(session, frame.header, buffer, admission))

    def ends(self, session: int, frame: Frame) -> None:
        """The whole frame has arrived; the lane handles it when its core is free."""
        self.core.submit(self._prices.of(frame.size), self._handle, session, frame)

    def _handle(self, session: int, frame: Frame) -> None:
        header = frame.header
        self.frames_in[header.kind] += 1
        if header.kind == MessageKind.CONTRIBUTION:
            if header.length:
                self._feed(self._placed[session].pop(0))
            else:
                self._feed(events.Contributed(session, header, None))
        else:
            payload = memoryview(frame.payload) if frame.payload else None
            self._feed(events.ControlReceived(session, header, payload))

    def start_ticking(self) -> None:
        self._clock.at(self._clock.now + TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self.core.submit(0.0, self._feed, events.Tick())
        self.start_ticking()

    # --- what the core answers ------------------------------------------------------------------

    def _feed(self, event: Any) -> None:
        since = thread_time()
        outputs = self.lane.handle(event, self._clock.now)
        self.times.add(type(event).__name__, since)
        came: list[events.Effect] = []
        for output in outputs:
            effect = self._actions[type(output)](output)
            if effect is not None:
                came.append(effect)
        for effect in came:
            self._feed(effect)

    def _on_send(self, send: events.Send) -> None:
        header = unpack_header(send.frame[:HEADER_SIZE], KERNELS.crc32c)
        payload = send.frame[HEADER_SIZE:] or None
        size = HEADER_SIZE + header.length
        self.frames_out[header.kind] += len(send.sessions)
        if header.kind == MessageKind.WELCOME:
            self.welcome = send.frame
        for session in send.sessions:
            frame = Frame(header, payload)
            self._clock.at(self.core.spend(self._prices.of(size)), self._send, session, frame)

    def _on_fold(self, fold: events.Fold) -> events.Folded:
        taken = None
        if fold.acc is None:
            taken = self._take(fold.sum.count * KERNELS.acc_itemsize(fold.sum.op, fold.sum.dtype))
        return events.Folded(fold.run, fold.work, taken, 0, NO_RANK)

    def _on_finish(self, finish: events.Finish) -> events.Reduced:
        self.chunks += 1
        crc = self._result_crc(result_bytes(finish.sum.dtype, finish.sum.count))
        return events.Reduced(finish.run, finish.work, None, crc, 0, NO_RANK)

    def _on_free(self, free: events.Free) -> None:
        buffers: Any = free.buffers
        self.held -= sum(buffer.size for buffer in buffers)

    def _take(self, length: int) -> SizedBuffer:
        buffer = SizedBuffer(length)
        self.held += buffer.size
        self.peak = max(self.peak, self.held)
        return buffer
