"""Events go into a lane, and outputs come out: all that core and shell exchange.

Effects are values. An output carries numbers and buffers, nothing that the shell could change. The
core does not assume that an output has succeeded: the result of a Fold or a Finish is an event. A
failed output is an event as well (Failed), which ends the run of the output. The shell hands these
events in after it has carried out the whole list of outputs, and before any other event.

Everything that exists for each contribution is a class: mypyc makes a C struct of a class, while a
named tuple is built and read as any Python object (a sixth of the lane's instructions). Everything
that holds an Exception is a class too: mypyc does not know Exception in a named tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from reducer.core.surface.buffer import Buffer
from reducer.core.surface.permit import Permit
from reducer.registry.records import Document, Key
from reducer.wire.header import Header

NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

# --- inputs ---------------------------------------------------------------------------------


class Opened(NamedTuple):
    """A connection whose preface named this lane; `session` is the shell's number for it.

    `permit`: what the worker has proven that it may join; None: any job.
    """

    session: int
    permit: Permit | None = None


class ControlReceived(NamedTuple):
    """A frame of any kind but CONTRIBUTION."""

    session: int
    header: Header
    payload: memoryview | None


class Admission:
    """What a lane has looked up for a contribution before memory is taken for it.

    The shell hands the Admission in with the contribution, and does not look into it.
    """

    __slots__ = ()


class Contributed:
    """A complete CONTRIBUTION; `buffer` is None if the payload is empty or was discarded.

    `admission` is what `Lane.admit` has returned; None also if `Lane.admit` was not called.
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
    """A Fold was carried out; `taken` is the buffer that the shell took for the accumulator, if
    any.

    `flags`: what the kernel has found in the values. `culprit`: the lowest rank of the Fold whose
    part is not finite, else NO_RANK.
    """

    __slots__ = ("culprit", "flags", "run", "taken", "work")

    def __init__(self, run: int, work: int, taken: Buffer | None, flags: int, culprit: int) -> None:
        self.run = run
        self.work = work
        self.taken = taken
        self.flags = flags
        self.culprit = culprit


class Reduced:
    """A Finish was carried out; `crc` is the CRC-32C of the result. The rest is as in Folded.

    `taken`: the buffer of the result if the Finish named none.
    """

    __slots__ = ("crc", "culprit", "flags", "run", "taken", "work")

    def __init__(
        self, run: int, work: int, taken: Buffer | None, crc: int, flags: int, culprit: int
    ) -> None:
        self.run = run
        self.work = work
        self.taken = taken
        self.crc = crc
        self.flags = flags
        self.culprit = culprit


class Failed:
    """An output of `run` (0: of no run) could not be carried out.

    `sessions` may have missed frames of the output. The shell keeps no buffer that it took for the
    output.
    """

    __slots__ = ("error", "run", "sessions")

    def __init__(self, run: int, sessions: Sequence[int], error: Exception) -> None:
        self.run = run
        self.sessions = sessions
        self.error = error


class Stored(NamedTuple):
    """A Store was carried out; `error`: why it has failed and changed nothing, else ""."""

    error: str


class Dialed(NamedTuple):
    """The Dial `link` has succeeded: the connection stands, and the other lane has proven itself.

    `session` is an ordinary session from now on: Send reaches it, its frames come as
    ControlReceived and Contributed, and Disconnected reports its end. There is no Opened for it. In
    mode open there is nothing to prove: a reducer of another mode answers with ERROR and closes.
    """

    link: int
    session: int


class DialFailed(NamedTuple):
    """The Dial `link` has failed and left nothing. `reason` is for people and names the address."""

    link: int
    reason: str


class Inspected(NamedTuple):
    """An Inspect was carried out; `is_within`: every value is finite and below the limit."""

    work: int
    is_within: bool


class Filled(NamedTuple):
    """A Fill was carried out; `buffers` are new, one for each initial value."""

    work: int
    buffers: Sequence[Buffer]


class Applied(NamedTuple):
    """An Apply was carried out; `is_finite`: all parameters and slots are, after the update."""

    work: int
    is_finite: bool


class Copied(NamedTuple):
    """A Copy was carried out: `buffer` is new, `crc` is the CRC-32C of its bytes."""

    work: int
    buffer: Buffer
    crc: int


class Averaged(NamedTuple):
    """An Average was carried out: `buffer` is new, `crc` is the CRC-32C of its bytes; `is_finite`:
    the mean and all parts are.
    """

    work: int
    buffer: Buffer
    crc: int
    is_finite: bool


class WorkFailed:
    """The output of this work could not be carried out. It has changed nothing."""

    __slots__ = ("error", "work")

    def __init__(self, work: int, error: Exception) -> None:
        self.work = work
        self.error = error


class Broken:
    """A session cannot continue: its peer broke the protocol (ReductionError), or a bug was met.

    A bug ends the whole run of the session.
    """

    __slots__ = ("error", "session")

    def __init__(self, session: int, error: Exception) -> None:
        self.session = session
        self.error = error


class Disconnected(NamedTuple):
    """A connection has ended; the shell reports this once for every session."""

    session: int
    reason: str


class CatchUp(NamedTuple):
    """The session has its turn and its run is behind: do the next part of the work."""

    session: int


class Tick(NamedTuple):
    """Time has passed."""


class Drain(NamedTuple):
    """Finish the open rounds, take no new run."""

    reason: str


class Shutdown(NamedTuple):
    """End every session now."""

    reason: str


TableEffect = Inspected | Filled | Applied | Copied | Averaged | WorkFailed
Effect = Folded | Reduced | Failed | Stored | DialFailed | TableEffect
Event = (
    Opened | ControlReceived | Contributed | Effect | Dialed | Broken | Disconnected | CatchUp
    | Tick | Drain | Shutdown
)  # fmt: skip


# --- outputs, to be carried out in their order ------------------------------------------------
#
# `run` is the number of the run that an output belongs to, 0 for none.


class Send:
    """Write `frame`, then the first `length` bytes of `buffer`, then `tail`, to each session."""

    __slots__ = ("buffer", "frame", "length", "run", "sessions", "tail")

    def __init__(
        self,
        run: int,
        sessions: Sequence[int],
        frame: bytes,
        buffer: Buffer | None,
        length: int,
        tail: bytes = b"",
    ) -> None:
        self.run = run
        self.sessions = sessions
        self.frame = frame
        self.buffer = buffer
        self.length = length
        self.tail = tail


class SendValue:
    """Write a frame to the session: `header` with the checksum of the payload, which is the first
    `header.length` bytes of `buffer` as they are now. The shell takes the header over. An Apply may
    change the buffer afterwards, and the frame stays as it is.
    """

    __slots__ = ("buffer", "header", "session")

    def __init__(self, session: int, header: Header, buffer: Buffer) -> None:
        self.session = session
        self.header = header
        self.buffer = buffer


class Sum:
    """What a kernel computes: `op` on `count` elements of each part, in a run of `world` ranks."""

    __slots__ = ("count", "dtype", "op", "world")

    def __init__(self, op: int, dtype: int, count: int, world: int) -> None:
        self.op = op
        self.dtype = dtype
        self.count = count
        self.world = world


class Fold:
    """Fold `parts`, the contributions of `ranks`, in order into `acc`; answered with Folded.

    If `acc` is None, the shell takes a buffer for the accumulator and begins with parts[0]. If
    `acc` is parts[0], the accumulator begins with that part, in place. `work` identifies the Fold
    in its run.
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
    """Reduce `acc`, if any, and `parts`, the contributions of `ranks`, into `out`; answered with
    Reduced. Without `out`, which has the size of a part, the shell takes a buffer for the result.
    """

    __slots__ = ("acc", "out", "parts", "ranks", "run", "sum", "work")

    def __init__(
        self,
        run: int,
        work: int,
        sum: Sum,
        acc: Buffer | None,
        parts: Sequence[Buffer],
        ranks: Sequence[int],
        out: Buffer | None,
    ) -> None:
        self.run = run
        self.work = work
        self.sum = sum
        self.acc = acc
        self.parts = parts
        self.ranks = ranks
        self.out = out


class Free:
    """The run no longer needs the buffers. Sockets may still have to send parts of them."""

    __slots__ = ("buffers", "run")

    def __init__(self, run: int, buffers: Sequence[Buffer]) -> None:
        self.run = run
        self.buffers = buffers


class Inspect(NamedTuple):
    """Find out whether all of `elements` float32 are finite and below `limit` in magnitude;
    answered with Inspected. This and the next outputs are of tables; `work` identifies each on the
    lane.
    """

    work: int
    elements: int
    buffer: Buffer
    limit: float


class Fill(NamedTuple):
    """Take a buffer of `elements` float32 for each value of `initials`, and fill it with the value;
    answered with Filled.
    """

    work: int
    elements: int
    initials: Sequence[float]


class Apply(NamedTuple):
    """Take a step of an optimizer, in place; answered with Applied.

    Without `scalars`, they are the float32 behind the gradient, as many as the rule has.
    """

    work: int
    rule: int
    elements: int
    parameters: Buffer
    gradient: Buffer
    slots: Sequence[Buffer]
    scalars: Sequence[float]


class Copy(NamedTuple):
    """Copy `length` bytes of `source` into a new buffer; answered with Copied."""

    work: int
    source: Buffer
    length: int


class Average(NamedTuple):
    """Sum `elements` float32 of each of `parts` in order, and divide once by `weight`, into a new
    buffer; answered with Averaged.
    """

    work: int
    elements: int
    weight: int
    parts: Sequence[Buffer]


class Close(NamedTuple):
    """Flush what was sent to the session and close its connection; `at_once`: without the flush."""

    run: int
    session: int
    reason: str
    at_once: bool = False


class Behind(NamedTuple):
    """The run has more work than one turn allows: hand in CatchUp in the turns of the session."""

    run: int
    session: int


class Store(NamedTuple):
    """Write the registry's documents, all of them, to its file; answered with Stored, later."""

    run: int
    floor: int
    documents: Sequence[tuple[Key, Document]]


class Dial:
    """Connect to a lane of another reducer, for the job; answered once, later, with Dialed or
    DialFailed.

    `link` is the core's own number for the attempt, from 1 on, and not used twice. `address` is as
    users write it; the connection uses TCP. Attempts continue during a drain. A lane that shuts
    down answers them all before Shutdown, and then no more.
    """

    __slots__ = ("address", "job", "lane", "link", "run")

    def __init__(self, run: int = 0, *, link: int, address: str, lane: int, job: str) -> None:
        self.run = run
        self.link = link
        self.address = address
        self.lane = lane
        self.job = job


class Wait(NamedTuple):
    """Half of the ranks had sent a chunk at `since`; `rank` was the last to send it, at `until`."""

    rank: int
    since: float
    until: float


class Traced(NamedTuple):
    """A round, or a step of a table (then `run` is 0), is over on this lane; only with
    `LaneSettings.traced`. `key` is a label.

    `wait` is the longest wait of the round. The last contribution came at `all_in_at`. All times
    come from the `now` of `handle`.
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

    `about`: the fields of the line besides its text: job, run, rank, key, round, code. `error`: an
    internal error, which is counted and logged with its stack.
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


TableOutput = Inspect | Fill | Apply | Copy | Average
Output = (
    Send
    | SendValue
    | Fold
    | Finish
    | Free
    | Close
    | Behind
    | Store
    | Dial
    | Traced
    | Log
    | TableOutput
)
