"""Control messages as frozen dataclasses; each is one msgpack map (PROTOCOL.md, sections 3 and 4).

Input is untrusted: `decode` checks the size, depth, number of items, and the type and range of
every field, and raises only BadFrameError. It ignores unknown names, so that minor versions can
add fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgpack  # type: ignore[import-untyped]  # ships no stubs

from reducer.wire.codes import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_TABLE_ROWS,
    MAX_CONTROL_BYTES,
    MAX_CONTROL_DEPTH,
    MAX_CONTROL_ITEMS,
    MAX_CONTROL_NAMES,
    MAX_CONTROL_VALUES,
    MAX_DOCUMENT_BYTES,
    MAX_HOLDER_BYTES,
    MAX_JOB_BYTES,
    MAX_KEY_BYTES,
    MAX_LANES,
    MAX_LEASE_BYTES,
    MAX_LIST_VALUES,
    MAX_RECORD_NAME_BYTES,
    MAX_REDUCERS,
    MAX_RUN_ID_BYTES,
    MAX_WEIGHTED,
    MAX_WEIGHTS,
    MAX_WORLD_SIZE,
    PROTOCOL_MINOR,
    MessageKind,
)
from reducer.wire.errors import BadFrameError
from reducer.wire.header import Buffer
from reducer.wire.losses import parse_losses
from reducer.wire.msgpack_shape import check_shape, is_map

INCARNATION_BYTES: Final = 16
TOKEN_BYTES: Final = 16
MAX_TEXT_BYTES: Final = 16_384
MAX_ABSENT: Final = 64
MAX_ABSENT_REASON_BYTES: Final = 256  # 64 of them stay far below a control frame
_INT64: Final = 1 << 63

ChunkTable = tuple[tuple[int, int], ...]
Check = Callable[[str, Any], Any]


def _integer(low: int, high: int) -> Check:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise BadFrameError(f"{name} must be an integer of {low} to {high}, got {value!r:.40}")
        return value

    return check


def _text(limit: int, empty: bool = True) -> Check:
    def check(name: str, value: Any) -> str:
        if type(value) is not str or len(value.encode()) > limit or not (value or empty):
            raise BadFrameError(
                f"{name} must be a text of {0 if empty else 1} to {limit} bytes, got {value!r:.40}"
            )
        return value

    return check


def _incarnation(name: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) != INCARNATION_BYTES:
        raise BadFrameError(f"{name} must be {INCARNATION_BYTES} bytes, got {value!r:.40}")
    return value


def _chunk_table(name: str, value: Any) -> ChunkTable:
    """Rows of (smallest size of a round, size of a chunk) in bytes, ascending from size 0."""
    if type(value) not in (list, tuple) or len(value) > MAX_CHUNK_TABLE_ROWS:
        raise BadFrameError(f"{name} must be a list of at most {MAX_CHUNK_TABLE_ROWS} rows")
    rows: list[tuple[int, int]] = []
    for row in value:
        if type(row) not in (list, tuple) or [type(item) for item in row] != [int, int]:
            raise BadFrameError(f"a row of {name} must be two integers, got {row!r:.40}")
        least, chunk = row
        floor = rows[-1][0] + 1 if rows else 0
        if least < floor or least >= _INT64 or (not rows and least != 0):
            raise BadFrameError(f"the rows of {name} must ascend from 0, got {least}")
        if not 64 <= chunk <= MAX_CHUNK_BYTES or chunk % 64:
            raise BadFrameError(
                f"chunks of {name} must be multiples of 64 up to {MAX_CHUNK_BYTES}, got {chunk}"
            )
        rows.append((least, chunk))
    return tuple(rows)


def _ranks(limit: int) -> Check:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if type(value) not in (list, tuple) or len(value) > limit:
            raise BadFrameError(f"{name} must be a list of at most {limit} ranks")
        rank = _integer(0, MAX_WORLD_SIZE - 1)
        return tuple(rank(name, item) for item in value)

    return check


def _integers(low: int, high: int) -> Check:
    """One integer for each slot."""
    item = _integer(low, high)

    def check(name: str, value: Any) -> tuple[int, ...]:
        if type(value) not in (list, tuple) or len(value) > MAX_REDUCERS:
            raise BadFrameError(f"{name} must be a list of at most {MAX_REDUCERS} slots")
        # A route has thousands of items: check them at once, and one by one only for the error.
        are_integers = value and list(map(type, value)).count(int) == len(value)
        if are_integers and min(value) >= low and max(value) <= high:
            return tuple(value)
        return tuple(item(name, each) for each in value)

    return check


_WEIGHT: Final = _integers(1, MAX_WEIGHTS)


def _weights(name: str, value: Any) -> tuple[int, ...]:
    weights: tuple[int, ...] = _WEIGHT(name, value)
    if len(weights) > MAX_WEIGHTED or sum(weights) > MAX_WEIGHTS:
        raise BadFrameError(
            f"{name} must be at most {MAX_WEIGHTED} numbers with a sum of at most {MAX_WEIGHTS}, "
            f"got {len(weights)} with a sum of {sum(weights)}"
        )
    return weights


def _lost(name: str, value: Any) -> bytes:
    if type(value) is not bytes:
        raise BadFrameError(f"{name} must be bytes, got {value!r:.40}")
    parse_losses(value)
    return value


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadFrameError(f"{name} must be true or false, got {value!r:.40}")
    return value


def _absent(name: str, value: Any) -> tuple[tuple[int, str], ...]:
    if type(value) not in (list, tuple) or len(value) > MAX_ABSENT:
        raise BadFrameError(f"{name} must be a list of at most {MAX_ABSENT} ranks and reasons")
    rank, reason = _integer(0, MAX_WORLD_SIZE - 1), _text(MAX_ABSENT_REASON_BYTES)
    pairs = []
    for item in value:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise BadFrameError(f"an item of {name} must be a rank and a reason, got {item!r:.40}")
        pairs.append((rank(name, item[0]), reason(name, item[1])))
    return tuple(pairs)


def _maps(limit: int) -> Check:
    def check(name: str, value: Any) -> tuple[dict[str, Any], ...]:
        if type(value) not in (list, tuple) or len(value) > limit:
            raise BadFrameError(f"{name} must be a list of at most {limit} maps")
        if any(type(item) is not dict for item in value):
            raise BadFrameError(f"{name} must be a list of maps")
        return tuple(value)

    return check


def _late(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of pairs")
    for item in value:
        if type(item) not in (list, tuple) or [type(part) for part in item] != [int, int]:
            raise BadFrameError(f"an item of {name} must be two integers, got {item!r:.40}")
    return tuple((item[0], item[1]) for item in value)


def _bytes(limit: int, least: int = 0) -> Check:
    def check(name: str, value: Any) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= limit:
            raise BadFrameError(f"{name} must be {least} to {limit} bytes, got {value!r:.40}")
        return value

    return check


_CALLS: Final = ("open", "get", "cas", "lease")


def _call(name: str, value: Any) -> str:
    if type(value) is not str or value not in _CALLS:
        raise BadFrameError(f"{name} must be one of {', '.join(_CALLS)}, got {value!r:.40}")
    return value


_HOLDER: Final = _text(MAX_HOLDER_BYTES)
_LEASE_VALUE: Final = _bytes(MAX_LEASE_BYTES)


def _leases(name: str, value: Any) -> tuple[tuple[str, bytes], ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of holders and values")
    pairs = []
    for item in value:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise BadFrameError(f"an item of {name} must be a holder and a value, got {item!r:.40}")
        pairs.append((_HOLDER(name, item[0]), _LEASE_VALUE(name, item[1])))
    return tuple(pairs)


def _holders(name: str, value: Any) -> tuple[str, ...]:
    if type(value) not in (list, tuple):
        raise BadFrameError(f"{name} must be a list of holders")
    return tuple(_HOLDER(name, item) for item in value)


_COUNT: Final = _integer(0, _INT64 - 1)
_RANK: Final = _integer(0, MAX_WORLD_SIZE - 1)
_MILLISECONDS: Final = _integer(0, 3_600_000)
_RANK_OR_NONE: Final = _integer(-1, MAX_WORLD_SIZE - 1)
_ROUTE: Final = _integer(0, (1 << 32) - 1)
_SINCE: Final = _integers(0, (1 << 32) - 1)
_LIVE: Final = _integers(0, 1)
_LANES_BY_SLOT: Final = _integers(1, MAX_LANES)


def _wire(check: Check, **kwargs: Any) -> Any:
    return field(metadata={"check": check}, **kwargs)


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

    job: str = _wire(_text(MAX_JOB_BYTES, empty=False))
    rank: int = _wire(_RANK)
    world_size: int = _wire(_integer(1, MAX_WORLD_SIZE))
    incarnation: bytes = _wire(_incarnation)
    slot: int = _wire(_integer(0, MAX_REDUCERS - 1))
    reducers: int = _wire(_integer(1, MAX_REDUCERS))
    run_id: str = _wire(_text(MAX_RUN_ID_BYTES), default="")
    chunk_table: ChunkTable = _wire(_chunk_table, default=())
    minor: int = _wire(_integer(0, 255), default=PROTOCOL_MINOR)
    client: str = _wire(_text(128), default="")
    rejoin: bool = _wire(_boolean, default=False)
    digest_every: int = _wire(_integer(0, (1 << 32) - 1), default=0)
    worker_silence_ms: int = _wire(_MILLISECONDS, default=0)
    weights: tuple[int, ...] = _wire(_weights, default=())
    elastic: bool = _wire(_boolean, default=False)
    lost: bytes = _wire(_lost, default=b"")


@dataclass(frozen=True, slots=True)
class Pending:
    """The lane has admitted the HELLO and waits for the `absent` ranks."""

    lanes: int = _wire(_integer(1, MAX_LANES))
    lane: int = _wire(_integer(0, MAX_LANES - 1))
    incarnation: bytes = _wire(_incarnation)
    absent: tuple[int, ...] = _wire(_ranks(64), default=())
    absent_count: int = _wire(_COUNT, default=0)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The run has formed: contributions may be sent.

    Without `since`, `live` and `lanes_by_slot` the route is 0, in which every slot is live.
    """

    run_id: str = _wire(_text(MAX_RUN_ID_BYTES, empty=False))
    slot: int = _wire(_integer(0, MAX_REDUCERS - 1))
    reducers: int = _wire(_integer(1, MAX_REDUCERS))
    lanes: int = _wire(_integer(1, MAX_LANES))
    lane: int = _wire(_integer(0, MAX_LANES - 1))
    incarnation: bytes = _wire(_incarnation)
    world_size: int = _wire(_integer(1, MAX_WORLD_SIZE))
    epoch: int = _wire(_integer(0, (1 << 32) - 1))
    route: int = _wire(_ROUTE)
    chunk_table: ChunkTable = _wire(_chunk_table)
    credit: int = _wire(_COUNT)
    grant: int = _wire(_COUNT)
    heartbeat_ms: int = _wire(_integer(1, 60_000))
    minor: int = _wire(_integer(0, 255), default=PROTOCOL_MINOR)
    instance: int = _wire(_COUNT, default=0)
    since: tuple[int, ...] = _wire(_SINCE, default=())
    live: tuple[int, ...] = _wire(_LIVE, default=())
    lanes_by_slot: tuple[int, ...] = _wire(_LANES_BY_SLOT, default=())
    digest_every: int = _wire(_integer(0, (1 << 32) - 1), default=0)
    worker_silence_ms: int = _wire(_MILLISECONDS, default=0)
    weights: tuple[int, ...] = _wire(_weights, default=())
    lost: bytes = _wire(_lost, default=b"")

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

    code: int = _wire(_integer(1, 255))
    message: str = _wire(_text(MAX_TEXT_BYTES))
    rank: int = _wire(_RANK_OR_NONE, default=-1)
    reason: str = _wire(_text(MAX_TEXT_BYTES), default="")
    key: str = _wire(_text(MAX_KEY_BYTES), default="")
    round: int = _wire(_integer(-1, _INT64 - 1), default=-1)


@dataclass(frozen=True, slots=True)
class Goaway:
    """The lane is shutting down: rank 0 must take its slot out of the route."""

    reason: str = _wire(_text(MAX_TEXT_BYTES))
    epoch: int = _wire(_integer(0, (1 << 32) - 1), default=0)


@dataclass(frozen=True, slots=True)
class Key:
    """The name of the key whose id is in the header."""

    name: str = _wire(_text(MAX_KEY_BYTES, empty=False))


@dataclass(frozen=True, slots=True)
class Stall:
    """Rounds that have waited too long; maps with key, round, age_ms, absent and absent_count."""

    rounds: tuple[dict[str, Any], ...] = _wire(_maps(16))


@dataclass(frozen=True, slots=True)
class Refused:
    """The round of the header's key has failed, with one text for every rank."""

    code: int = _wire(_integer(1, 255))
    message: str = _wire(_text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class Abandon:
    """The rank gives the round up; code and message are copied from the REFUSED that it got."""

    code: int = _wire(_integer(1, 255))
    message: str = _wire(_text(MAX_TEXT_BYTES))


@dataclass(frozen=True, slots=True)
class Route:
    """Which slots are live, and the route that put the streams of each slot on their lanes.

    `lost`: the ranks that are out of the run; the route belongs to the epoch of the last loss.
    """

    route: int = _wire(_ROUTE)
    since: tuple[int, ...] = _wire(_SINCE)
    live: tuple[int, ...] = _wire(_LIVE)
    lanes_by_slot: tuple[int, ...] = _wire(_LANES_BY_SLOT)
    lost: bytes = _wire(_lost, default=b"")

    def __post_init__(self) -> None:
        _check_route(self.route, self.since, self.live, self.lanes_by_slot)


@dataclass(frozen=True, slots=True)
class Suspect:
    """`rank` cannot reach `slot`; `route` is the newest route that `rank` knows.

    `restarted`: a lane of the slot answers, but has lost the streams of the rank.
    """

    rank: int = _wire(_RANK)
    slot: int = _wire(_integer(0, MAX_REDUCERS - 1))
    route: int = _wire(_ROUTE)
    reason: str = _wire(_text(MAX_TEXT_BYTES), default="")
    restarted: bool = _wire(_boolean, default=False)


@dataclass(frozen=True, slots=True)
class Absent:
    """Ranks that are not connected to the lane, each with the reason, and ranks that said BYE.

    `left` lists at most 4,096 of the ranks that said BYE; `left_count` is the number of all of
    these.
    """

    absent: tuple[tuple[int, str], ...] = _wire(_absent, default=())
    left: tuple[int, ...] = _wire(_ranks(MAX_CONTROL_ITEMS), default=())
    left_count: int = _wire(_COUNT, default=0)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one run on one lane; bytes are payload bytes. `waiting` has maps as in STALL."""

    bytes_in: int = _wire(_COUNT, default=0)
    bytes_out: int = _wire(_COUNT, default=0)
    contributions: int = _wire(_COUNT, default=0)
    results: int = _wire(_COUNT, default=0)
    duplicates: int = _wire(_COUNT, default=0)
    rounds: int = _wire(_COUNT, default=0)
    open_rounds: int = _wire(_COUNT, default=0)
    keys: int = _wire(_COUNT, default=0)
    held_bytes: int = _wire(_COUNT, default=0)
    late: tuple[tuple[int, int], ...] = _wire(_late, default=())
    waiting: tuple[dict[str, Any], ...] = _wire(_maps(16), default=())


@dataclass(frozen=True, slots=True)
class RegistryCall:
    """A worker's call of the registry (fields: PROTOCOL.md, section 15)."""

    call: str = _wire(_call)
    job: str = _wire(_text(MAX_JOB_BYTES), default="")
    name: str = _wire(_text(MAX_RECORD_NAME_BYTES), default="")
    version: int = _wire(_COUNT, default=0)
    value: bytes = _wire(_bytes(MAX_DOCUMENT_BYTES), default=b"")
    token: bytes = _wire(_bytes(TOKEN_BYTES), default=b"")
    holder: str = _wire(_HOLDER, default="")
    milliseconds: int = _wire(_MILLISECONDS, default=0)
    boot: bytes = _wire(_bytes(INCARNATION_BYTES), default=b"")
    revision: int = _wire(_COUNT, default=0)
    incarnation: bytes = _wire(_bytes(INCARNATION_BYTES), default=b"")


@dataclass(frozen=True, slots=True)
class RegistryRecord:
    """The answer to a RegistryCall, or a part of it; `more`: another part follows."""

    code: int = _wire(_integer(0, 255), default=0)
    message: str = _wire(_text(MAX_TEXT_BYTES), default="")
    done: bool = _wire(_boolean, default=True)
    more: bool = _wire(_boolean, default=False)
    incarnation: bytes = _wire(_bytes(INCARNATION_BYTES), default=b"")
    boot: bytes = _wire(_bytes(INCARNATION_BYTES), default=b"")
    revision: int = _wire(_COUNT, default=0)
    whole: bool = _wire(_boolean, default=False)
    version: int = _wire(_COUNT, default=0)
    value: bytes = _wire(_bytes(MAX_DOCUMENT_BYTES), default=b"")
    leases: tuple[tuple[str, bytes], ...] = _wire(_leases, default=())
    gone: tuple[str, ...] = _wire(_holders, default=())


Message = (
    Hello | Pending | Welcome | Error | Goaway | Key | Stall | Refused | Abandon | Route | Suspect
    | Absent | Stats | RegistryCall | RegistryRecord
)  # fmt: skip
M = TypeVar(
    "M", Hello, Pending, Welcome, Error, Goaway, Key, Stall, Refused, Abandon, Route, Suspect,
    Absent, Stats, RegistryCall, RegistryRecord,
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
}


_FIELDS: Final = {kind: {f.name: f for f in dataclasses.fields(kind)} for kind in KIND_OF}
# Messages with a list by slot or rank.
_WITH_LISTS: Final = (Welcome, Route, Absent, RegistryRecord)
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
