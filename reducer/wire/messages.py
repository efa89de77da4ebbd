"""Control messages as frozen dataclasses; each is one msgpack map (PROTOCOL.md, sections 3 and 4).

Input is untrusted: `decode` checks the size, depth, number of items, and the type and range of
every field, and raises only BadFrameError. It ignores unknown names, so that minor versions can
add fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer.wire import checks
from reducer.wire.checks import ChunkTable, wire
from reducer.wire.codes import (
    MAX_CONTROL_BYTES,
    MAX_CONTROL_DEPTH,
    MAX_CONTROL_ITEMS,
    MAX_CONTROL_NAMES,
    MAX_CONTROL_VALUES,
    MAX_DOCUMENT_BYTES,
    MAX_JOB_BYTES,
    MAX_KEY_BYTES,
    MAX_LANES,
    MAX_LIST_VALUES,
    MAX_RECORD_NAME_BYTES,
    MAX_REDUCERS,
    MAX_RUN_ID_BYTES,
    MAX_WORLD_SIZE,
    PROTOCOL_MINOR,
    MessageKind,
)
from reducer.wire.errors import BadFrameError
from reducer.wire.header import Buffer
from reducer.wire.msgpack_shape import check_shape, is_map
from reducer.wire.table_messages import Notice, TableCall


def _check_route(
    route: int, since: tuple[int, ...], live: tuple[int, ...], lanes_by_slot: tuple[int, ...]
) -> None:
    """The lists have one length, a slot is live, and no slot is newer than the route."""
    if not len(since) == len(live) == len(lanes_by_slot):
        raise BadFrameError(
            f"the lists of route {route} differ in length: {len(since)} since, {len(live)} live, "
            f"{len(lanes_by_slot)} lanes_by_slot"
        )
    if not any(live):
        raise BadFrameError(f"route {route} has no live slot")
    newest = max(since)
    if newest > route:
        raise BadFrameError(
            f"route {route}: 'since' must be at most {route}, got {newest} for slot "
            f"{since.index(newest)}"
        )


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker asks to join a run (fields: PROTOCOL.md, section 4)."""

    job: str = wire(checks.text(MAX_JOB_BYTES, empty=False))
    rank: int = wire(checks.RANK)
    world_size: int = wire(checks.integer(1, MAX_WORLD_SIZE))
    incarnation: bytes = wire(checks.incarnation)
    slot: int = wire(checks.integer(0, MAX_REDUCERS - 1))
    reducers: int = wire(checks.integer(1, MAX_REDUCERS))
    run_id: str = wire(checks.text(MAX_RUN_ID_BYTES), default="")
    chunk_table: ChunkTable = wire(checks.chunk_table, default=())
    minor: int = wire(checks.integer(0, 255), default=PROTOCOL_MINOR)
    client: str = wire(checks.text(128), default="")
    rejoin: bool = wire(checks.boolean, default=False)
    digest_every: int = wire(checks.integer(0, (1 << 32) - 1), default=0)
    worker_silence_ms: int = wire(checks.MILLISECONDS, default=0)
    weights: tuple[int, ...] = wire(checks.weights, default=())
    elastic: bool = wire(checks.boolean, default=False)
    lost: bytes = wire(checks.lost, default=b"")


@dataclass(frozen=True, slots=True)
class Pending:
    """The lane has admitted the HELLO and waits for the `absent` ranks."""

    lanes: int = wire(checks.integer(1, MAX_LANES))
    lane: int = wire(checks.integer(0, MAX_LANES - 1))
    incarnation: bytes = wire(checks.incarnation)
    absent: tuple[int, ...] = wire(checks.ranks(64), default=())
    absent_count: int = wire(checks.COUNT, default=0)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run has formed: contributions may be sent.

    Without `since`, `live` and `lanes_by_slot` the route is 0, in which every slot is live.
    """

    run_id: str = wire(checks.text(MAX_RUN_ID_BYTES, empty=False))
    slot: int = wire(checks.integer(0, MAX_REDUCERS - 1))
    reducers: int = wire(checks.integer(1, MAX_REDUCERS))
    lanes: int = wire(checks.integer(1, MAX_LANES))
    lane: int = wire(checks.integer(0, MAX_LANES - 1))
    incarnation: bytes = wire(checks.incarnation)
    world_size: int = wire(checks.integer(1, MAX_WORLD_SIZE))
    epoch: int = wire(checks.integer(0, (1 << 32) - 1))
    route: int = wire(checks.ROUTE)
    chunk_table: ChunkTable = wire(checks.chunk_table)
    credit: int = wire(checks.COUNT)
    grant: int = wire(checks.COUNT)
    heartbeat_ms: int = wire(checks.integer(1, 60_000))
    minor: int = wire(checks.integer(0, 255), default=PROTOCOL_MINOR)
    instance: int = wire(checks.COUNT, default=0)
    since: tuple[int, ...] = wire(checks.SINCE, default=())
    live: tuple[int, ...] = wire(checks.LIVE, default=())
    lanes_by_slot: tuple[int, ...] = wire(checks.LANES_BY_SLOT, default=())
    digest_every: int = wire(checks.integer(0, (1 << 32) - 1), default=0)
    worker_silence_ms: int = wire(checks.MILLISECONDS, default=0)
    weights: tuple[int, ...] = wire(checks.weights, default=())
    lost: bytes = wire(checks.lost, default=b"")

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != self.reducers:
            raise BadFrameError(
                f"{len(self.weights)} weights, expected {self.reducers}, one for each reducer"
            )
        if not (self.since or self.live or self.lanes_by_slot):
            if self.route:
                raise BadFrameError(f"route {self.route} has no lists by slot")
            return
        if len(self.since) != self.reducers:
            raise BadFrameError(
                f"route {self.route} has {len(self.since)} slots, expected {self.reducers}, one "
                "for each reducer"
            )
        _check_route(self.route, self.since, self.live, self.lanes_by_slot)


@dataclass(frozen=True, slots=True)
class Error:
    """Why the session is over; the last frame that the peer sends."""

    code: int = wire(checks.integer(1, 255))
    message: str = wire(checks.text(checks.MAX_TEXT_BYTES))
    rank: int = wire(checks.RANK_OR_NONE, default=-1)
    reason: str = wire(checks.text(checks.MAX_TEXT_BYTES), default="")
    key: str = wire(checks.text(MAX_KEY_BYTES), default="")
    round: int = wire(checks.integer(-1, checks.INT64 - 1), default=-1)


@dataclass(frozen=True, slots=True)
class Goaway:
    """The lane is shutting down: rank 0 must take its slot out of the route."""

    reason: str = wire(checks.text(checks.MAX_TEXT_BYTES))
    epoch: int = wire(checks.integer(0, (1 << 32) - 1), default=0)


@dataclass(frozen=True, slots=True)
class Key:
    """The name of the key whose id is in the header."""

    name: str = wire(checks.text(MAX_KEY_BYTES, empty=False))


@dataclass(frozen=True, slots=True)
class Stall:
    """Rounds that have waited too long; maps with key, round, age_ms, absent and absent_count."""

    rounds: tuple[dict[str, Any], ...] = wire(checks.maps(16))


@dataclass(frozen=True, slots=True)
class Refused:
    """The round of the header's key has failed, with one text for every rank."""

    code: int = wire(checks.integer(1, 255))
    message: str = wire(checks.text(checks.MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class Abandon:
    """The rank gives the round up; code and message are copied from the REFUSED that it got."""

    code: int = wire(checks.integer(1, 255))
    message: str = wire(checks.text(checks.MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class Route:
    """Which slots are live, and the route that put the streams of each slot on their lanes.

    `lost`: the ranks that are out of the run; the route belongs to the epoch of the last loss.
    """

    route: int = wire(checks.ROUTE)
    since: tuple[int, ...] = wire(checks.SINCE)
    live: tuple[int, ...] = wire(checks.LIVE)
    lanes_by_slot: tuple[int, ...] = wire(checks.LANES_BY_SLOT)
    lost: bytes = wire(checks.lost, default=b"")

    def __post_init__(self) -> None:
        _check_route(self.route, self.since, self.live, self.lanes_by_slot)


@dataclass(frozen=True, slots=True)
class Suspect:
    """`rank` cannot reach `slot`; `route` is the newest route that `rank` knows.

    `restarted`: a lane of the slot answers, but has lost the streams of the rank.
    """

    rank: int = wire(checks.RANK)
    slot: int = wire(checks.integer(0, MAX_REDUCERS - 1))
    route: int = wire(checks.ROUTE)
    reason: str = wire(checks.text(checks.MAX_TEXT_BYTES), default="")
    restarted: bool = wire(checks.boolean, default=False)


@dataclass(frozen=True, slots=True)
class Absent:
    """Ranks that are not connected to the lane, each with the reason, and ranks that said BYE.

    `left` lists at most 4,096 of the ranks that said BYE; `left_count` is the number of all of
    these.
    """

    absent: tuple[tuple[int, str], ...] = wire(checks.absent, default=())
    left: tuple[int, ...] = wire(checks.ranks(MAX_CONTROL_ITEMS), default=())
    left_count: int = wire(checks.COUNT, default=0)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one run on one lane; bytes are payload bytes. `waiting` has maps as in STALL."""

    bytes_in: int = wire(checks.COUNT, default=0)
    bytes_out: int = wire(checks.COUNT, default=0)
    contributions: int = wire(checks.COUNT, default=0)
    results: int = wire(checks.COUNT, default=0)
    duplicates: int = wire(checks.COUNT, default=0)
    rounds: int = wire(checks.COUNT, default=0)
    open_rounds: int = wire(checks.COUNT, default=0)
    keys: int = wire(checks.COUNT, default=0)
    held_bytes: int = wire(checks.COUNT, default=0)
    late: tuple[tuple[int, int], ...] = wire(checks.late, default=())
    waiting: tuple[dict[str, Any], ...] = wire(checks.maps(16), default=())


@dataclass(frozen=True, slots=True)
class RegistryCall:
    """A worker's call of the registry (fields: PROTOCOL.md, section 15)."""

    call: str = wire(checks.registry_call)
    job: str = wire(checks.text(MAX_JOB_BYTES), default="")
    name: str = wire(checks.text(MAX_RECORD_NAME_BYTES), default="")
    version: int = wire(checks.COUNT, default=0)
    value: bytes = wire(checks.octets(MAX_DOCUMENT_BYTES), default=b"")
    token: bytes = wire(checks.octets(checks.TOKEN_BYTES), default=b"")
    holder: str = wire(checks.HOLDER, default="")
    milliseconds: int = wire(checks.MILLISECONDS, default=0)
    boot: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    revision: int = wire(checks.COUNT, default=0)
    incarnation: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """The answer to a RegistryCall, or a part of it; `more`: another part follows."""

    code: int = wire(checks.integer(0, 255), default=0)
    message: str = wire(checks.text(checks.MAX_TEXT_BYTES), default="")
    done: bool = wire(checks.boolean, default=True)
    more: bool = wire(checks.boolean, default=False)
    incarnation: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    boot: bytes = wire(checks.octets(checks.INCARNATION_BYTES), default=b"")
    revision: int = wire(checks.COUNT, default=0)
    whole: bool = wire(checks.boolean, default=False)
    version: int = wire(checks.COUNT, default=0)
    value: bytes = wire(checks.octets(MAX_DOCUMENT_BYTES), default=b"")
    leases: tuple[tuple[str, bytes], ...] = wire(checks.leases, default=())
    gone: tuple[str, ...] = wire(checks.holders, default=())


Message = (
    Hello | Pending | Welcome | Error | Goaway | Key | Stall | Refused | Abandon | Route | Suspect
    | Absent | Stats | RegistryCall | RegistryRecord | TableCall | Notice
)  # fmt: skip
M = TypeVar(
    "M", Hello, Pending, Welcome, Error, Goaway, Key, Stall, Refused, Abandon, Route, Suspect,
    Absent, Stats, RegistryCall, RegistryRecord, TableCall, Notice,
)  # fmt: skip

KIND_OF: dict[type[Message], MessageKind] = {
    Hello: MessageKind.HELLO,
    Pending: MessageKind.PENDING,
    Welcome: MessageKind.WELCOME,
    Error: MessageKind.ERROR,
    Goaway: MessageKind.GOAWAY,
    Key: MessageKind.KEY,
    Stats: MessageKind.STATS,
    Stall: MessageKind.STALL,
    Refused: MessageKind.REFUSED,
    Abandon: MessageKind.ABANDON,
    Route: MessageKind.ROUTE,
    Suspect: MessageKind.SUSPECT,
    Absent: MessageKind.ABSENT,
    RegistryCall: MessageKind.REGISTRY,
    RegistryRecord: MessageKind.RECORD,
    TableCall: MessageKind.TABLE,
    Notice: MessageKind.NOTICE,
}


_FIELDS: Final = {kind: {f.name: f for f in dataclasses.fields(kind)} for kind in KIND_OF}
# Messages with a list by slot or rank.
_WITH_LISTS: Final = (Welcome, Route, Absent, RegistryRecord, TableCall, Notice)
# Messages with nested maps. A lane sends them and accepts none of them.
_WITH_MAPS: Final = (Stall, Stats)


def encode(message: Message) -> bytes:
    """The msgpack map of `message`."""
    values = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    packed: bytes = msgpack.packb(values)
    return packed


def decode(kind: type[M], payload: Buffer) -> M:
    """Parse and check the map of one control frame; raises BadFrameError only."""
    fields = _FIELDS[kind]
    known: dict[str, Any] = {}
    for name, value in _entries(
        payload, MAX_LIST_VALUES if kind in _WITH_LISTS else MAX_CONTROL_VALUES
    ):
        if (f := fields.get(name)) is not None:
            if name in known:
                raise BadFrameError(f"{kind.__name__} names {name!r} twice")
            found = _unpack(value, MAX_CONTROL_ITEMS if kind in _WITH_MAPS else 0)
            known[name] = f.metadata["check"](name, found)
    for name, f in fields.items():
        if name not in known and f.default is dataclasses.MISSING:
            raise BadFrameError(f"{kind.__name__} lacks {name!r}")
    return kind(**known)


def _entries(payload: Buffer, max_values: int) -> Iterator[tuple[str, Buffer]]:
    """The names in a map, and their values, not unpacked.

    The map is not passed to msgpack as a whole: msgpack interns the names of a map, and Python 3.12
    never frees interned strings, so a peer could fill the memory with random names.
    """
    if len(payload) > MAX_CONTROL_BYTES:
        raise BadFrameError(
            f"a control map has {len(payload)} bytes, the limit is {MAX_CONTROL_BYTES}"
        )
    places = check_shape(payload, MAX_CONTROL_DEPTH, MAX_CONTROL_ITEMS, max_values)
    if not is_map(payload):
        raise BadFrameError("a control frame must be one map with text keys")
    if len(places) // 2 > MAX_CONTROL_NAMES:
        raise BadFrameError(
            f"a control map has {len(places) // 2} names, the limit is {MAX_CONTROL_NAMES}"
        )
    for begin, middle, end in zip(places[0:-1:2], places[1::2], places[2::2], strict=True):
        name = _unpack(payload[begin:middle], 0)
        if type(name) is not str:
            raise BadFrameError("a control frame must be one map with text keys")
        yield name, payload[middle:end]


def _unpack(payload: Buffer, max_map_items: int) -> Any:
    try:
        return msgpack.unpackb(payload, max_map_len=max_map_items, strict_map_key=True)
    except ValueError as error:
        raise BadFrameError(f"a control frame is no msgpack map: {error!r:.80}") from None
