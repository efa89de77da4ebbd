"""What goes into a lane and what comes out of it: the whole surface between core and shell.

Effects are values. An output carries numbers and buffers, nothing that the shell could change, and
the core takes no effect for granted: what came of a Fold or a Finish is an event, and an output
that failed is one too (Failed), which ends the run that the output is of. The shell hands these
events in once the whole list of outputs is carried out, and before any other event.

What comes with each contribution is a class of its own: mypyc makes that a C struct, where a
named tuple is built and read as any Python object (a sixth of the lane's instructions). What holds
an Exception is a class too: mypyc does not know it in a named tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.permit import Permit
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


class Admission:
    """What a lane has looked up for a contribution before memory is taken for it.

    The shell hands it in with the contribution, and knows nothing of it.
    """

    __slots__ = ()


class Contributed:
    """A complete CONTRIBUTION; `buffer` is None where its length is 0, or nobody needs it.

    `admission` is what `Lane.admit` has returned for it; None where nobody has asked.
    """

    __slots__ = ("admission", "buffer", "header", "session")

    def __init__(
        self,
        session: int,
        header: Header,
        buffer: Buffer | None,
        admission: Admission | None = None,
    ) -> None:
        self.session = session
        self.header = header
        self.buffer = buffer
        self.admission = admission


class Folded:
    """A Fold was carried out; `taken` is the buffer that the shell took for its accumulator, if so.

    `flags` is what the kernel has seen; `culprit` is the lowest rank of the Fold whose part is not
    finite, else NO_RANK.
    """

    __slots__ = ("culprit", "flags", "run", "taken", "work")

    def __init__(self, run: int, work: int, taken: Buffer | None, flags: int, culprit: int) -> None:
        self.run = run
        self.work = work
        self.taken = taken
        self.flags = flags
        self.culprit = culprit


class Reduced:
    """A Finish was carried out; `crc` is the CRC-32C of the result, the rest as in Folded."""

    __slots__ = ("crc", "culprit", "flags", "run", "work")

    def __init__(self, run: int, work: int, crc: int, flags: int, culprit: int) -> None:
        self.run = run
        self.work = work
        self.crc = crc
        self.flags = flags
        self.culprit = culprit


class Failed:
    """An output of `run` (0: of none) could not be carried out.

    `sessions` may have missed what it was to bring them. The shell keeps no buffer that it took
    for the output.
    """

    __slots__ = ("error", "run", "sessions")

    def __init__(self, run: int, sessions: Sequence[int], error: Exception) -> None:
        self.run = run
        self.sessions = sessions
        self.error = error


class Broken:
    """A session cannot go on: its peer broke the rules (ReductionError), or it met a bug of ours.

    A bug ends the whole run that the session is in.
    """

    __slots__ = ("error", "session")

    def __init__(self, session: int, error: Exception) -> None:
        self.session = session
        self.error = error


class Lost(NamedTuple):
    """A connection has ended; the shell says so once for every session."""

    session: int
    reason: str


class CatchUp(NamedTuple):
    """It is the session's turn, and its run is behind: do the next part of the work."""

    session: int


class Tick(NamedTuple):
    """Time has passed."""


class Drain(NamedTuple):
    """Finish the open rounds, take no new run."""

    reason: str


class Shutdown(NamedTuple):
    """End every session now."""

    reason: str


Effect = Folded | Reduced | Failed
Event = (
    Opened | ControlReceived | Contributed | Effect | Broken | Lost | CatchUp | Tick | Drain
    | Shutdown
)  # fmt: skip


# --- outputs, to be carried out in their order ------------------------------------------------
#
# `run` is the number of the run that an output is of, 0 for none.


class Send:
    """Write `frame`, then the first `length` bytes of `buffer`, to each session."""

    __slots__ = ("buffer", "frame", "length", "run", "sessions")

    def __init__(
        self, run: int, sessions: Sequence[int], frame: bytes, buffer: Buffer | None, length: int
    ) -> None:
        self.run = run
        self.sessions = sessions
        self.frame = frame
        self.buffer = buffer
        self.length = length


class Sum:
    """What a kernel computes: an op on `count` elements of each part, of `world` ranks in all."""

    __slots__ = ("count", "dtype", "op", "world")

    def __init__(self, op: int, dtype: int, count: int, world: int) -> None:
        self.op = op
        self.dtype = dtype
        self.count = count
        self.world = world


class Fold:
    """Fold `parts`, of `ranks`, in order into `acc`; answered with Folded.

    `acc` None: take a buffer for the accumulator and begin it from parts[0]. `acc` parts[0]: begin
    from it, in place. `work` is the run's number for it.
    """

    __slots__ = ("acc", "parts", "ranks", "run", "sum", "work")

    def __init__(
        self,
        run: int,
        work: int,
        sum: Sum,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        ranks: Sequence[int],
    ) -> None:
        self.run = run
        self.work = work
        self.sum = sum
        self.acc = acc
        self.parts = parts
        self.ranks = ranks


class Finish:
    """Reduce `acc`, if any, and `parts`, of `ranks`, into `out`; answered with Reduced."""

    __slots__ = ("acc", "out", "parts", "ranks", "run", "sum", "work")

    def __init__(
        self,
        run: int,
        work: int,
        sum: Sum,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        ranks: Sequence[int],
        out: Buffer,
    ) -> None:
        self.run = run
        self.work = work
        self.sum = sum
        self.acc = acc
        self.parts = parts
        self.ranks = ranks
        self.out = out


class Free:
    """The run needs the buffers no more; sockets may still hold a part of them unsent."""

    __slots__ = ("buffers", "run")

    def __init__(self, run: int, buffers: Sequence[Buffer]) -> None:
        self.run = run
        self.buffers = buffers


class Close(NamedTuple):
    """Flush what was sent to the session, then close its connection; or end it `at_once`."""

    run: int
    session: int
    reason: str
    at_once: bool = False


class Behind(NamedTuple):
    """The run has more to do than at once: hand in CatchUp in the turns of the session."""

    run: int
    session: int


class Wait(NamedTuple):
    """Half of the ranks had sent a chunk at `since`, and `rank`, the last of them, at `until`."""

    rank: int
    since: float
    until: float


class Traced(NamedTuple):
    """A round is over on this lane; `key` is a label. Only where `LaneSettings.traced` asks for it.

    `wait` is its longest; nothing has come for it since `all_in_at`. Times are those that `handle`
    was given.
    """

    run: int
    job: str
    key: str
    round: int
    bytes: int
    opened_at: float
    wait: Wait
    all_in_at: float
    ended_at: float


class Log:
    """A line for the operator; `level` as in the logging module.

    `about`: the fields of the line beside its text: job, run, rank, key, round, code. `error`: a
    bug of ours, to be counted, and logged with its stack.
    """

    __slots__ = ("about", "error", "level", "run", "text")

    def __init__(
        self,
        run: int,
        level: int,
        text: str,
        about: Mapping[str, object] = NOTHING,
        error: Exception | None = None,
    ) -> None:
        self.run = run
        self.level = level
        self.text = text
        self.about = about
        self.error = error


Output = Send | Fold | Finish | Free | Close | Behind | Traced | Log
