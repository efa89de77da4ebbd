"""The backup's end of a link, and who may send a log: the test is the primary."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.core.surface import events
from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.registry.records import Contents
from reducer.wire import messages
from reducer.wire.codes import SCALARS_BYTES, DType, Entry, ErrorCode, MessageKind
from reducer.wire.decoder import Frame
from reducer.wire.header import Header
from reducer.wire.messages import encode
from reducer.wire.table_messages import Notice, TableCall
from tests.support.frames import control, error_of, frame, heartbeat
from tests.support.simlane import SimLane, SimSession
from tests.support.table_worker import TableWorker

ONES = np.ones(40, np.float32)
NOWHERE = (9).to_bytes(16, "little")


def chunk(kind: MessageKind, payload: bytes = bytes(64)) -> bytes:
    return frame(Header(kind, DType.FLOAT32, stable=1), payload)


class Backup:
    """A lane that follows the log of a primary that the test plays."""

    def __init__(self, lane: SimLane | None = None, **fields: object) -> None:
        self.lane = lane if lane is not None else SimLane()
        self.link = self.lane.connect()
        self.answer = self.follow(**fields)

    def follow(self, **fields: object) -> list[Frame]:
        known: dict[str, object] = {
            "job": "job", "partitions": 1, "term": 1, "reducer": bytes(16), "incarnation": NOWHERE,
        }  # fmt: skip
        self.link.send(control(TableCall("follow", **{**known, **fields}), key=1))  # type: ignore[arg-type]
        return self.link.read()

    def again(self) -> list[Frame]:
        """The primary connects again. Returns the answer to `follow`."""
        self.link.disconnect()
        self.link = self.lane.connect()
        return self.follow()

    def table(self) -> TableWorker:
        """Log a table and its values: the entries 1 to 4."""
        worker = TableWorker(SimLane(), 0)
        self.entry(1, Entry.CALL, encode(worker.description))
        for number, place in enumerate(worker.shards()):
            self.entry(2 + number, Entry.VALUES, ONES[place].tobytes(), number, worker.key)
        return worker

    def entry(
        self, position: int, kind: int, payload: bytes = b"", shard: int = 0, key: int = 0,
        **fields: int,
    ) -> None:  # fmt: skip
        header = Header(
            MessageKind.LOG, DType.FLOAT32, flags=kind, rank=0, stable=position, route=1,
            chunk=shard, key=key, **fields,
        )  # fmt: skip
        self.link.send(frame(header, payload))

    def logged(self) -> int:
        """The last position that the lane has confirmed."""
        frames = [each for each in self.link.read() if each.header.kind == MessageKind.LOGGED]
        return frames[-1].header.round


def version_of(frames: list[Frame]) -> int:
    (answer,) = [each for each in frames if each.header.kind == MessageKind.NOTICE]
    return messages.decode(Notice, answer.payload or b"").version


UPDATE = ONES[:16].tobytes() + bytes(SCALARS_BYTES)


@pytest.mark.parametrize(
    ("position", "kind", "payload", "why"),
    [
        (6, Entry.UPDATE, UPDATE, "entry 6 of a log came, expected 5"),
        (6, Entry.OUTCOME, b"", "entry 6 of a log came, expected 5"),
        (5, Entry.UPDATE, UPDATE[:-1], "has 87 bytes for a shard of 64"),
        (5, Entry.OUTCOME, UPDATE, "has 88 bytes for a shard of 64"),
        (5, Entry.VALUES, b"", "an entry of kind 2 without a payload"),
        (5, 99, UPDATE, "of kind 99"),
        (5, Entry.CALL, encode(TableCall("follow")), "a log has the call follow"),
        (5, Entry.CALL, encode(TableCall("drop", name="other")), "has no table 'other'"),
        (5, Entry.CALL, encode(TableCall("set", name="net")), "which has no steps"),
        (5, Entry.CALL, b"garbage", ""),
        (5, Entry.MEAN, UPDATE[:64], "came before its set"),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_fit_is_refused_and_not_confirmed(
    position: int, kind: int, payload: bytes, why: str
) -> None:
    backup = Backup()
    key = backup.table().key
    assert backup.logged() == 4
    backup.entry(position, kind, payload, key=key, count=1)
    assert backup.link.closed is not None
    assert why in error_of(backup.link.read()).message
    assert version_of(backup.again()) == 4
    backup.entry(5, Entry.UPDATE, UPDATE, key=key, count=1)
    assert backup.logged() == 5


def test_an_update_that_skips_a_version_is_refused_and_not_confirmed() -> None:
    backup = Backup()
    key = backup.table().key
    backup.entry(5, Entry.UPDATE, UPDATE, key=key, count=2)
    assert error_of(backup.link.read()).code == ErrorCode.INTEGRITY
    assert version_of(backup.again()) == 4


def test_entries_that_the_backup_has_are_confirmed_again() -> None:
    backup = Backup()
    backup.table()
    held = len(backup.lane.held)
    backup.table()
    assert backup.logged() == 4
    assert len(backup.lane.held) == held


@pytest.mark.parametrize("kind", [MessageKind.LOG, MessageKind.PUSH])
@pytest.mark.parametrize("payload", [b"", bytes(64)])
@pytest.mark.parametrize("state", ["new", "registry", "tables", "follows", "in a run"])
def test_entries_and_pushes_need_their_first_call(
    kind: MessageKind, payload: bytes, state: str
) -> None:
    lane = SimLane(registry_contents=Contents(bytes(16), 0, {}))
    session = lane.connect()
    if state == "registry":
        session.send(control(messages.RegistryCall("open", job="job"), key=1))
    elif state == "tables":
        session.send(control(TableCall("open", job="job", worker=0, incarnation=NOWHERE)))
    elif state == "follows":
        session = Backup(lane).link
    elif state == "in a run":
        session.send(control(messages.Hello("job", 0, 1, bytes(16), 0, 1, "run", ((0, 64),))))
    session.read()
    session.send(chunk(kind, payload))
    assert session.closed is not None
    assert error_of(session.read()).code != ErrorCode.INTERNAL
    assert not lane.held


# --- who may send a log -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "is_admitted"),
    [
        ((("job", ANY_RANK),), True),
        ((("other", ANY_RANK), ("job", ANY_RANK)), True),
        ((("other", ANY_RANK),), False),
        ((), False),
    ],
)
def test_a_primary_sends_logs_of_the_jobs_of_its_proof(
    places: tuple[tuple[str, int], ...], is_admitted: bool
) -> None:
    lane = SimLane()
    session = SimSession(lane, 1)
    lane.sessions[1] = session
    lane.feed(events.Opened(1, Permit("key", places)))
    call = TableCall("follow", job="job", partitions=1, reducer=bytes(16), incarnation=NOWHERE)
    session.send(control(call, key=1))
    (answer,) = session.read()
    if is_admitted:
        assert messages.decode(Notice, answer.payload or b"").call == "follow"
        return
    error = error_of([answer])
    assert error.code == ErrorCode.AUTHENTICATION and "tables of job 'job'" in error.message
    assert lane.core.idle


def test_a_log_counts_as_a_connection_of_its_job() -> None:
    """Its room is taken from the job's memory, and given back with it."""
    lane = SimLane()
    free = lane.core.room_for_chunks
    backup = Backup(lane)
    taken = free - lane.core.room_for_chunks
    assert taken > lane.settings.credit
    backup.again()
    assert free - lane.core.room_for_chunks == taken
    backup.link.disconnect()
    assert lane.core.room_for_chunks == free


def test_a_primary_that_is_silent_is_disconnected() -> None:
    backup = Backup()
    for _ in range(3):
        backup.lane.tick(0.8 * backup.lane.settings.silence)
        backup.link.send(heartbeat())
        assert backup.link.closed is None
        assert [each.header.kind for each in backup.link.read()] == [MessageKind.HEARTBEAT]
    backup.lane.tick(1.1 * backup.lane.settings.silence)
    assert backup.link.closed is not None


def test_a_lane_that_drains_takes_no_log() -> None:
    lane = SimLane()
    lane.feed(events.Drain("the test"))
    assert error_of(Backup(lane).answer).code == ErrorCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"reducer": NOWHERE}, ErrorCode.STATE_LOST),
        ({"term": 2}, ErrorCode.STATE_LOST),
        ({"term": 0}, ErrorCode.EVICTED),
    ],
)
def test_a_log_that_belongs_elsewhere_is_refused(
    fields: dict[str, object], code: ErrorCode
) -> None:
    lane = SimLane()
    if code == ErrorCode.EVICTED:
        Backup(lane)
    assert error_of(Backup(lane, **fields).answer).code == code
