"""What goes into a lane and what comes out of it: the whole surface between core and shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reducer.core.buffer import Buffer
from reducer.core.round import Chunk
from reducer.errors import ReductionError
from reducer.wire.header import Header

# --- inputs ---------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A connection whose preface named this lane; `session` is the shell's number for it.

    `proven_job`: the job whose key its worker has proven; None where nobody is asked.
    """

    session: int
    proven_job: str | None = None


class ControlReceived(NamedTuple):
    """Any frame but a CONTRIBUTION."""

    session: int
    header: Header
    payload: memoryview | None


class Contributed(NamedTuple):
    """A complete CONTRIBUTION; `buffer` is None where its length is 0."""

    session: int
    header: Header
    buffer: Buffer | None


class Reduced(NamedTuple):
    """A Finish was carried out: flags of the kernel, CRC-32C of the result."""

    chunk: Chunk
    flags: int
    crc: int


class Broken(NamedTuple):
    """The peer of a session broke the rules: the decoder, `admit` or `handle` raised."""

    session: int
    error: ReductionError


class Lost(NamedTuple):
    """A connection has ended; the shell says so once for every session."""

    session: int
    reason: str


class Tick(NamedTuple):
    """Time has passed."""


class Drain(NamedTuple):
    """Finish the open rounds, take no new run."""

    reason: str


class Shutdown(NamedTuple):
    """End every session now."""

    reason: str


Event = Opened | ControlReceived | Contributed | Reduced | Broken | Lost | Tick | Drain | Shutdown


# --- outputs, to be carried out in their order ------------------------------------------------


class Send(NamedTuple):
    """Write `frame`, then the first `length` bytes of `buffer`, to each session."""

    sessions: Sequence[int]
    frame: bytes
    buffer: Buffer | None
    length: int


class Fold(NamedTuple):
    """Fold `parts`, in order, into the accumulator of `chunk`.

    `acc` None: take a buffer for `count` accumulator elements, begin it from parts[0], and set
    `chunk.acc` to it. The returned flags are added to `chunk.flags`.
    """

    chunk: Chunk
    op: int
    dtype: int
    count: int  # type: ignore[assignment]  # hides tuple.count on purpose
    acc: Buffer | None
    parts: Sequence[Buffer]


class Finish(NamedTuple):
    """Reduce `acc` (may be None: read `chunk.acc` is the same) and `parts` into `out`.

    Then hand Reduced(chunk, flags, CRC of the result) back before the outputs that follow.
    """

    chunk: Chunk
    op: int
    dtype: int
    count: int  # type: ignore[assignment]  # hides tuple.count on purpose
    world: int
    acc: Buffer | None
    parts: Sequence[Buffer]
    out: Buffer


class Free(NamedTuple):
    """The buffer may be used again at once: nobody reads it any more."""

    buffer: Buffer


class Discard(NamedTuple):
    """Forget the buffer, do not use it again: a socket may still hold a part of it unsent."""

    buffer: Buffer


class Close(NamedTuple):
    """Flush what was sent to the session, then close its connection."""

    session: int
    reason: str


class Log(NamedTuple):
    """A line for the operator; `level` as in the logging module."""

    level: int
    text: str


Output = Send | Fold | Finish | Free | Discard | Close | Log
