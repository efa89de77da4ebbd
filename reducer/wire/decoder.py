"""Incremental frame decoder: bytes in, frames out; payloads of chunks are not copied.

The event loop reads into `get_buffer()`, passes the number of bytes to `received()` and takes
frames from `next_frame()`. The payload of a chunk is read straight into the buffer that
`target(header)` returns. The next header fits behind the payload in the same buffer, so a stream
of chunks costs one read per chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reducer.wire.codes import CHUNK_KINDS, MAX_EARLY_BYTES, MessageKind
from reducer.wire.errors import CorruptedError
from reducer.wire.header import HEADER_SIZE, Crc, Header, unpack_header

# Buffer for headers and small frames: one read takes a burst of small frames and copies each once.
SCRATCH_BYTES: Final = 16_384
# Size of the buffer until the first chunk: a connection that has joined no run takes little memory.
FIRST_SCRATCH_BYTES: Final = 1_024

_NOTHING: Final = memoryview(b"")
# A target returns SKIP for a payload that nobody needs: the decoder discards the bytes.
SKIP: Final = memoryview(bytearray(65_536))
Target = Callable[[Header], memoryview]


def _no_target(header: Header) -> memoryview:
    raise RuntimeError("the decoder has ended")


class Frame:
    """A complete, checked frame.

    `payload` is the view that `target` returned, cut to the payload's length, or memory of its own
    for small frames. It is None if the frame has no payload or the payload was skipped.
    """

    __slots__ = ("header", "payload")

    def __init__(self, header: Header, payload: memoryview | None) -> None:
        self.header = header
        self.payload = payload


class Decoder:
    """One direction of one connection.

    `target` is called once for each chunk (CHUNK_KINDS) with a payload, and for each other frame
    of more than MAX_EARLY_BYTES, before any byte of the payload is taken. It returns a writable
    view of at least length + HEADER_SIZE bytes, or SKIP. A skipped frame has no payload, and its
    payload CRC is not checked. `next_frame` raises only the ProtocolError family; after an error
    the decoder must not be used again.
    """

    def __init__(self, crc32c: Crc, target: Target) -> None:
        self._crc = crc32c
        self._target = target
        self._scratch = memoryview(bytearray(FIRST_SCRATCH_BYTES))
        self._room = FIRST_SCRATCH_BYTES  # wanted size of scratch
        # Between frames: scratch[start:filled] is read and not parsed.
        # Inside a payload: its header, its memory, the number of bytes received, and their CRC,
        # which is computed while the bytes are in the cache.
        self._start = 0
        self._filled = 0
        self._header: Header | None = None
        self._view = _NOTHING
        self._have = 0
        self._sum = 0

    @property
    def has_chunks(self) -> bool:
        """Whether a chunk has been received."""
        return self._room == SCRATCH_BYTES

    def get_buffer(self) -> memoryview:
        header = self._header
        if header is not None:
            if self._view is SKIP:
                return SKIP[: min(header.length - self._have, len(SKIP))]
            return self._view[self._have : header.length + HEADER_SIZE]
        return self._scratch[self._filled :] if self._filled else self._scratch

    def received(self, nbytes: int) -> None:
        """Account for `nbytes` read into `get_buffer()`.

        Before the next read, call `next_frame` until it returns None.
        """
        header = self._header
        if header is None:
            self._filled += nbytes
            return
        have = self._have
        self._have = have + nbytes
        if self._view is not SKIP:
            end = min(header.length, self._have)
            self._sum = self._crc(self._view[have:end], self._sum)

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None.

        A frame is returned before the following header is parsed. So when `target` decides about a
        payload, the caller has already handled all earlier frames.
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
        return _checked(header, payload, self._sum)

    def end(self) -> None:
        """Read nothing more. Drops `target`, whose owner holds the decoder: a reference cycle."""
        self._target = _no_target
        self._view = _NOTHING

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Decode `data`, which may begin and end inside a frame: for tests and simulated links."""
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
            return _checked(header, None, 0)
        view = self._place(header)
        have = min(length, self._filled - start)
        crc = 0
        if view is not SKIP:
            view[:have] = scratch[start : start + have]
            crc = self._crc(view[:have])
        if have < length:
            self._header, self._view, self._have, self._sum = header, view, have, crc
            self._start = self._filled = 0
            return None
        self._start = start + have
        return Frame(header, None) if view is SKIP else _checked(header, view[:length], crc)

    def _close_up(self, start: int) -> None:
        """Move the beginning of a header to the start of scratch, and grow scratch if wanted."""
        left = self._filled - start
        if left and start:
            self._scratch[:left] = bytes(self._scratch[start : self._filled])
        self._start, self._filled = 0, left
        if len(self._scratch) < self._room:
            grown = memoryview(bytearray(self._room))
            grown[:left] = self._scratch[:left]
            self._scratch = grown

    def _place(self, header: Header) -> memoryview:
        if header.kind in CHUNK_KINDS:
            self._room = SCRATCH_BYTES
            return self._target(header)
        if header.length > MAX_EARLY_BYTES:
            return self._target(header)
        return memoryview(bytearray(header.length + HEADER_SIZE))


def _checked(header: Header, payload: memoryview | None, crc: int) -> Frame:
    if crc != header.payload_crc:
        raise CorruptedError(
            f"the CRC-32C of a {MessageKind(header.kind).name} payload of {header.length} "
            f"bytes does not match (key {header.key:#x} round {header.round} chunk "
            f"{header.chunk}): bytes were changed on the way"
        )
    return Frame(header, payload)
