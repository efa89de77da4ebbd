"""The primary's end of a link: the test is the backup."""

from __future__ import annotations

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import DType, Entry, ErrorCode, MessageKind
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall
from tests.support.frames import control, error_of, frame, heartbeat
from tests.support.simlane import SimLane, SimSession
from tests.support.table_worker import TableWorker

ONES = np.ones(40, np.float32)
NOWHERE = (9).to_bytes(16, "little")


class Primary:
    """A lane with a worker, whose backup the test plays."""

    def __init__(self) -> None:
        self.lane = SimLane()
        self.worker = TableWorker(
            self.lane, 0, term=1, partitions=1, reducer=self.lane.settings.incarnation,
            backup="far:1", backup_reducer=NOWHERE,
        )  # fmt: skip
        self.link = self.dialed()

    def dialed(self) -> SimSession:
        """The lane has connected."""
        (dial,) = self.lane.dials
        self.lane.dials = []
        return self.lane.link(dial)

    def follow(self, version: int = 0) -> None:
        self.link.send(control(Notice("follow", version=version)))

    def wait_for_dial(self, seconds: float = 1.0) -> float:
        """How long the lane waits before it connects again."""
        before = self.lane.now
        while not self.lane.dials:
            assert self.lane.now < before + seconds, "it does not connect again"
            self.lane.tick()
        return self.lane.now - before

    def is_alone(self) -> bool:
        """Whether the worker was told so."""
        return bool(self.worker.notices("alone"))


def chunk(kind: MessageKind, payload: bytes = bytes(64)) -> bytes:
    return frame(Header(kind, DType.FLOAT32, stable=1), payload)


@pytest.mark.parametrize(
    "data",
    [
        control(TableCall("open", job="job")),
        control(messages.Hello("job", 0, 1, bytes(16), 0, 1, "run", ((0, 64),))),
        control(messages.RegistryCall("open", job="job")),
        frame(Header(MessageKind.PULL)),
        frame(Header(MessageKind.BYE)),
        frame(Header(MessageKind.RECEIPT)),
        chunk(MessageKind.CONTRIBUTION),
        chunk(MessageKind.PUSH),
        chunk(MessageKind.LOG),
        chunk(MessageKind.PUSH, b""),
        chunk(MessageKind.LOG, b""),
        control(Notice("open")),
    ],
    ids=[
        *["open", "hello", "registry", "pull", "bye", "receipt", "contribution", "push", "log"],
        "empty push",
        "empty log",
        "other notice",
    ],
)
def test_other_frames_of_a_backup_end_the_link(data: bytes) -> None:
    primary = Primary()
    primary.follow()
    primary.link.read()
    primary.link.send(data)
    assert primary.link.closed is not None
    assert error_of(primary.link.read()).code == ErrorCode.PROTOCOL
    primary.link.disconnect()
    primary.wait_for_dial()


def test_what_is_no_mistake_of_a_backup() -> None:
    primary = Primary()
    primary.follow()
    primary.link.read()
    for data in (heartbeat(), frame(Header(MessageKind.LOGGED, round=99))):
        primary.link.send(data)
        assert primary.link.closed is None
    primary.worker.table()
    primary.worker.values(ONES)
    kinds = [each.header.flags for each in primary.link.read()]
    assert kinds == [Entry.CALL, Entry.CALL, Entry.VALUES, Entry.VALUES, Entry.VALUES]


def test_a_refusal_is_told_and_the_lane_tries_again_later_and_later() -> None:
    primary = Primary()
    waits = []
    for _ in range(6):
        primary.link.send(control(messages.Error(int(ErrorCode.UNAVAILABLE), "it drains")))
        assert primary.link.closed == "it drains"
        assert primary.is_alone()
        primary.link.disconnect()
        waits.append(primary.wait_for_dial())
        primary.link = primary.dialed()
    assert waits[0] < 0.1 and 0.4 < waits[-1] < 0.6


def test_a_place_that_ends_its_connections_without_a_word_counts_as_lost() -> None:
    """Such as a proxy whose reducer is gone: it accepts, and closes."""
    primary = Primary()
    waits = []
    for _ in range(6):
        primary.link.disconnect()
        assert not primary.lane.dials
        assert primary.is_alone()
        waits.append(primary.wait_for_dial())
        primary.is_alone()
        primary.link = primary.dialed()
    assert waits[0] < 0.1 and 0.4 < waits[-1] < 0.6


def test_a_link_that_breaks_is_dialed_again_and_nobody_is_told() -> None:
    primary = Primary()
    for _ in range(3):
        primary.follow()
        primary.link.disconnect()
        assert primary.wait_for_dial() < 0.1
        primary.link = primary.dialed()
    assert not primary.is_alone()


def test_a_link_that_has_lasted_is_dialed_again_at_once() -> None:
    """The reducer may have died, and changes wait until the workers know."""
    primary = Primary()
    primary.follow()
    for _ in range(4):
        primary.lane.tick(0.2)
        primary.link.send(heartbeat())
    primary.link.disconnect()
    assert primary.lane.dials and not primary.is_alone()
    primary.link = primary.dialed()
    primary.follow()
    primary.link.disconnect()
    assert not primary.lane.dials, "a connection that ends at once has a wait"


def test_a_backup_that_does_not_answer_is_told() -> None:
    primary = Primary()
    primary.lane.tick(0.9)
    assert not primary.is_alone()
    primary.lane.tick(0.5)
    assert primary.is_alone()
    assert primary.link.closed is not None and "silent" in primary.link.closed


def test_a_link_that_nobody_needs_any_more_is_closed() -> None:
    """The workers have decided otherwise, while the lane connects."""
    primary = Primary()
    primary.link.disconnect()
    primary.wait_for_dial()
    TableWorker(primary.lane, 1, term=2, partitions=1, reducer=primary.lane.settings.incarnation)
    assert primary.dialed().closed == "nobody needs this link any more"


def test_a_link_needs_no_hello() -> None:
    primary = Primary()
    primary.follow()
    while primary.lane.now < 2 * primary.lane.settings.hello_deadline:
        primary.lane.tick(0.5)
        primary.link.send(heartbeat())
    assert primary.link.closed is None


def test_a_backup_may_have_the_whole_budget_unread() -> None:
    """What waits for it is bounded by the credits of the workers."""
    primary = Primary()
    room = primary.lane.settings.budget
    assert primary.lane.core.unread_room(primary.link.number) == (room, room)
