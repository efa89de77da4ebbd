"""What goes into a lane and what comes out of it: the whole surface between core and shell.

What comes with each contribution is a class of its own: mypyc makes that a C struct, where a
named tuple is built and read as any Python object (a sixth of the lane's instructions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from reducer.core.buffer import Buffer
from reducer.core.permit import Permit
from reducer.core.round import Chunk, Wait
from reducer.errors import ReductionError
from reducer.wire.header import Header

NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

# --- inputs ---------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A connection whose preface named this lane; `session` is the shell's number for it.

    `permit`: what its worker has proven that it may join; None: anything.
    """

    session: int
    permit: Permit | None = None


class ControlReceived(NamedTuple):
    """Any frame but a CONTRIBUTION."""

    session: int
    header: Header
    payload: memoryview | None


class Contributed:
    """A complete CONTRIBUTION; `buffer` is None where its length is 0."""

    __slots__ = ("buffer", "header", "session")

    def __init__(self, session: int, header: Header, buffer: Buffer | None) -> None:
        self.session = session
        self.header = header
        self.buffer = buffer


class Reduced:
    """A Finish was carried out and noted; CRC-32C of the result."""

    __slots__ = ("chunk", "crc")

    def __init__(self, chunk: Chunk, crc: int) -> None:
        self.chunk = chunk
        self.crc = crc


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


class Send:
    """Write `frame`, then the first `length` bytes of `buffer`, to each session."""

    __slots__ = ("buffer", "frame", "length", "sessions")

    def __init__(
        self, sessions: Sequence[int], frame: bytes, buffer: Buffer | None, length: int
    ) -> None:
        self.sessions = sessions
        self.frame = frame
        self.buffer = buffer
        self.length = length


class Fold:
    """Fold `parts`, of `ranks`, in order into the accumulator of `chunk`.

    `acc` None: take a buffer for `count` accumulator elements, begin it from parts[0], and set
    `chunk.acc` to it. `acc` parts[0]: begin from it, in place. What the kernel has seen goes to
    `chunk.note`.
    """

    __slots__ = ("acc", "chunk", "count", "dtype", "op", "parts", "ranks")

    def __init__(
        self,
        chunk: Chunk,
        op: int,
        dtype: int,
        count: int,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        ranks: Sequence[int],
    ) -> None:
        self.chunk = chunk
        self.op = op
        self.dtype = dtype
        self.count = count
        self.acc = acc
        self.parts = parts
        self.ranks = ranks


class Finish:
    """Reduce `acc` (may be None: read `chunk.acc` is the same) and `parts` into `out`.

    What the kernel has seen goes to `chunk.note`; then hand Reduced(chunk, CRC of the result) back
    before the outputs that follow.
    """

    __slots__ = ("acc", "chunk", "count", "dtype", "op", "out", "parts", "ranks", "world")

    def __init__(
        self,
        chunk: Chunk,
        op: int,
        dtype: int,
        count: int,
        world: int,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        ranks: Sequence[int],
        out: Buffer,
    ) -> None:
        self.chunk = chunk
        self.op = op
        self.dtype = dtype
        self.count = count
        self.world = world
        self.acc = acc
        self.parts = parts
        self.ranks = ranks
        self.out = out


class Free:
    """The buffer may be used again at once: nobody reads it any more."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer


class Discard(NamedTuple):
    """Forget the buffer, do not use it again: a socket may still hold a part of it unsent."""

    buffer: Buffer


class Close(NamedTuple):
    """Flush what was sent to the session, then close its connection; or end it `at_once`."""

    session: int
    reason: str
    at_once: bool = False


class Traced(NamedTuple):
    """A round is over on this lane; `key` is a label. Only where `LaneSettings.traced` asks for it.

    `wait` is its longest; nothing has come for it since `all_in_at`. Times are those that `handle`
    was given.
    """

    job: str
    key: str
    round: int
    bytes: int
    opened_at: float
    wait: Wait
    all_in_at: float
    ended_at: float


class Log(NamedTuple):
    """A line for the operator; `level` as in the logging module.

    `about`: the fields of the line beside its text: job, run, rank, key, round, code.
    """

    level: int
    text: str
    about: Mapping[str, object] = NOTHING


Output = Send | Fold | Finish | Free | Discard | Close | Traced | Log
