"""Incremental frame decoder: bytes in, frames out; it never copies a chunk's payload.

The event loop asks `get_buffer()` where to read next, reports the count to `received()` and takes
the frames from `next_frame()`. The payload of a chunk is read straight into the buffer that
`target(header)` hands out, with room for the next header behind it, so that a stream of chunks
costs one read a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reducer.wire.codes import CONTRIBUTION, MAX_EARLY_BYTES, RESULT, MessageKind
from reducer.wire.errors import CorruptedError
from reducer.wire.header import HEADER_SIZE, Crc, Header, unpack_header

# Room for small frames: a burst of them is taken in one read, at the price of one copy each.
SCRATCH_BYTES: Final = 16_384
# Until a chunk has come: whoever is in no run yet takes little.
FIRST_SCRATCH_BYTES: Final = 1_024

_NOTHING: Final = memoryview(b"")
# What a target gives for a payload that nobody needs: its bytes are thrown away as they come.
SKIP: Final = memoryview(bytearray(65_536))
Target = Callable[[Header], memoryview]


def _no_target(header: Header) -> memoryview:
    raise RuntimeError("the decoder has ended")


class Frame:
    """A complete, checked frame.

    `payload` is the view that `target` gave, cut to the length, for a chunk; memory of its own
    for other frames; None without payload.
    """

    __slots__ = ("header", "payload")

    def __init__(self, header: Header, payload: memoryview | None) -> None:
        self.header = header
        self.payload = payload


class Decoder:
    """One direction of one connection.

    `target` is called once for every CONTRIBUTION or RESULT with payload, and for every other frame
    of more than MAX_EARLY_BYTES, before a byte of the payload is taken; it returns a writable view
    of at least length + HEADER_SIZE bytes, or SKIP: the frame then has no payload, and nobody looks
    at its CRC. `next_frame` raises the ProtocolError family only; after that the decoder must not
    be used again.
    """

    def __init__(self, crc32c: Crc, target: Target) -> None:
        self._crc = crc32c
        self._target = target
        self._scratch = memoryview(bytearray(FIRST_SCRATCH_BYTES))
        self._room = FIRST_SCRATCH_BYTES  # that scratch should have
        # Between frames: what of scratch is filled, and from where on it is not parsed yet.
        # Inside a payload: its header, its memory, and how much has come.
        self._start = 0
        self._filled = 0
        self._header: Header | None = None
        self._view = _NOTHING
        self._have = 0

    @property
    def inside_frame(self) -> bool:
        """Whether the stream ended here would cut a frame."""
        return self._filled > 0 or self._header is not None

    @property
    def has_chunks(self) -> bool:
        """Whether a chunk has come."""
        return self._room == SCRATCH_BYTES

    def get_buffer(self) -> memoryview:
        header = self._header
        if header is not None:
            if self._view is SKIP:
                return SKIP[: min(header.length - self._have, len(SKIP))]
            return self._view[self._have : header.length + HEADER_SIZE]
        return self._scratch[self._filled :] if self._filled else self._scratch

    def received(self, nbytes: int) -> None:
        """So many bytes were read; take the frames until there is none before the next read."""
        if self._header is None:
            self._filled += nbytes
        else:
            self._have += nbytes

    def next_frame(self) -> Frame | None:
        """The next frame that is complete.

        A frame is given out before the header behind it is looked at: whoever decides in `target`
        has acted on everything that was sent before.
        """
        header = self._header
        if header is None:
            return self._parse_scratch()
        length = header.length
        spare = self._have - length
        if spare < 0:
            return None
        if self._view is SKIP:
            self._header, self._view = None, _NOTHING
            return Frame(header, None)
        if spare:  # the beginning of the next header
            self._scratch[:spare] = self._view[length : self._have]
        self._start, self._filled = 0, spare
        payload, self._view = self._view[:length], _NOTHING
        self._header = None
        return self._finish(header, payload)

    def end(self) -> None:
        """Nothing more is read: let go of `target`, as who gave it holds the decoder."""
        self._target = _no_target
        self._view = _NOTHING

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Copy `data` in, however it is cut: for tests and simulated links."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            n = min(len(room), len(rest))
            room[:n] = rest[:n]
            rest = rest[n:]
            self.received(n)
            while (frame := self.next_frame()) is not None:
                frames.append(frame)
        return frames

    def _parse_scratch(self) -> Frame | None:
        scratch, start = self._scratch, self._start
        if self._filled - start < HEADER_SIZE:
            self._close_up(start)
            return None
        header = unpack_header(scratch[start : start + HEADER_SIZE], self._crc)
        start += HEADER_SIZE
        length = header.length
        if length == 0:
            self._start = start
            return self._finish(header, None)
        view = self._place(header)
        have = min(length, self._filled - start)
        if view is not SKIP:
            view[:have] = scratch[start : start + have]
        if have < length:
            self._header, self._view, self._have = header, view, have
            self._start = self._filled = 0
            return None
        self._start = start + have
        return Frame(header, None) if view is SKIP else self._finish(header, view[:length])

    def _close_up(self, start: int) -> None:
        """Make room behind the beginning of a header."""
        left = self._filled - start
        if left and start:
            self._scratch[:left] = bytes(self._scratch[start : self._filled])
        self._start, self._filled = 0, left
        if len(self._scratch) < self._room:
            grown = memoryview(bytearray(self._room))
            grown[:left] = self._scratch[:left]
            self._scratch = grown

    def _place(self, header: Header) -> memoryview:
        if header.kind in (CONTRIBUTION, RESULT):
            self._room = SCRATCH_BYTES
            return self._target(header)
        if header.length > MAX_EARLY_BYTES:
            return self._target(header)
        return memoryview(bytearray(header.length + HEADER_SIZE))

    def _finish(self, header: Header, payload: memoryview | None) -> Frame:
        crc = self._crc(payload) if payload is not None else 0
        if crc != header.payload_crc:
            raise CorruptedError(
                f"the CRC-32C of a {MessageKind(header.kind).name} payload of {header.length} "
                f"bytes does not match (key {header.key:#x} round {header.round} chunk "
                f"{header.chunk}): bytes were changed on the way"
            )
        return Frame(header, payload)
