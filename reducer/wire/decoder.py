"""Incremental frame decoder: bytes in, frames out; it never copies a chunk's payload.

The event loop asks `get_buffer()` where to read next and reports the count to `received()`. The
payload of a chunk is read straight into the buffer that `target(header)` hands out, with room for
the next header behind it, so that a stream of chunks costs one read a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from reducer.errors import IntegrityError
from reducer.wire.codes import MessageKind
from reducer.wire.header import HEADER_SIZE, Crc, Header, unpack_header

# Room for small frames: a burst of them is taken in one read, at the price of one copy each.
SCRATCH_BYTES = 16_384

Target = Callable[[Header], memoryview]


class Frame(NamedTuple):
    """A complete, checked frame.

    `payload` is the view that `target` gave, cut to the length, for a chunk; memory of its own
    for other frames; None without payload.
    """

    header: Header
    payload: memoryview | None


class Decoder:
    """One direction of one connection.

    `target` is called once for every CONTRIBUTION or RESULT with payload, before a byte of it is
    taken; it returns a writable view of at least length + HEADER_SIZE bytes. `received` raises
    the ProtocolError family only; after that the decoder must not be used again.
    """

    def __init__(self, crc32c: Crc, target: Target) -> None:
        self._crc = crc32c
        self._target = target
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        # Between frames: bytes of scratch that are filled. Inside a payload: header and view.
        self._filled = 0
        self._header: Header | None = None
        self._view = self._scratch
        self._have = 0

    @property
    def inside_frame(self) -> bool:
        """Whether the stream ended here would cut a frame."""
        return self._filled > 0 or self._header is not None

    def get_buffer(self) -> memoryview:
        if self._header is None:
            return self._scratch[self._filled :]
        return self._view[self._have : self._header.length + HEADER_SIZE]

    def received(self, nbytes: int) -> Iterator[Frame]:
        """The frames that are complete now; iterate to the end before the next `get_buffer`.

        A frame is given out before the header behind it is looked at: whoever decides in `target`
        has acted on everything that was sent before.
        """
        if self._header is None:
            self._filled += nbytes
        else:
            self._have += nbytes
            spare = self._have - self._header.length
            if spare < 0:
                return
            # The bytes behind the payload are the beginning of the next header.
            self._scratch[:spare] = self._view[self._header.length : self._have]
            self._filled = spare
            yield self._finish(self._header, self._view[: self._header.length])
        yield from self._parse_scratch()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Copy `data` in, however it is cut: for tests and simulated links."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest:
            room = self.get_buffer()
            n = min(len(room), len(rest))
            room[:n] = rest[:n]
            rest = rest[n:]
            frames += self.received(n)
        return frames

    def _parse_scratch(self) -> Iterator[Frame]:
        start = 0
        scratch = self._scratch
        while self._filled - start >= HEADER_SIZE:
            header = unpack_header(scratch[start : start + HEADER_SIZE], self._crc)
            start += HEADER_SIZE
            length = header.length
            if length == 0:
                yield self._finish(header, None)
                continue
            view = self._place(header)
            have = min(length, self._filled - start)
            view[:have] = scratch[start : start + have]
            start += have
            if have < length:
                self._header, self._view, self._have = header, view, have
                self._filled = 0
                return
            yield self._finish(header, view[:length])
        left = self._filled - start
        if left and start:
            scratch[:left] = bytes(scratch[start : self._filled])
        self._filled = left

    def _place(self, header: Header) -> memoryview:
        if header.kind in (MessageKind.CONTRIBUTION, MessageKind.RESULT):
            return self._target(header)
        return memoryview(bytearray(header.length + HEADER_SIZE))

    def _finish(self, header: Header, payload: memoryview | None) -> Frame:
        self._header = None
        crc = self._crc(payload) if payload is not None else 0
        if crc != header.payload_crc:
            raise IntegrityError(
                f"the CRC-32C of a {MessageKind(header.kind).name} payload of {header.length} "
                f"bytes does not match (key {header.key:#x} round {header.round} chunk "
                f"{header.chunk}): bytes were changed on the way"
            )
        return Frame(header, payload)
