"""Values of a pull are received into the caller's memory, and never after the pull has ended."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.decoder import SKIP, Frame
from reducer.wire.errors import BadFrameError
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice
from reducer_client.tables.inbox import Inbox
from reducer_client.tables.layout import Layout, Tensor
from reducer_client.tables.outgoing import Outgoing
from reducer_client.tables.pulls import Pull
from reducer_client.tables.shared import Shared

LAYOUT = Layout("net", (Tensor("all", (40,)),), partitions=1, shard=16)


class Nobody:
    """Hears nothing in these tests."""

    def take_open(self, notice: Notice) -> None: ...

    def take_news(self, notice: Notice) -> None: ...

    def take_refusal(self, notice: Notice) -> None: ...

    def take_error(self, error: messages.Error) -> None: ...


class Asked:
    """A pull that a lane was asked for."""

    def __init__(self) -> None:
        self.shared = Shared(5.0)
        self.outgoing = Outgoing()
        self.outgoing.credit = 1 << 20
        self.vector = np.zeros(LAYOUT.count, np.float32)
        self.pull = Pull(self.shared, LAYOUT, 9, [self.vector], worker=0)
        self.outgoing.put(self.pull.items(range(LAYOUT.shards)))
        while self.outgoing.take() is not None:
            pass

    def inbox(self) -> Inbox:
        return Inbox(self.shared, self.outgoing, Nobody(), "the lane")


def value(shard: int, version: int = 1) -> Header:
    place = LAYOUT.place(shard)
    size = 4 * (place.stop - place.start)
    return Header(
        MessageKind.VALUE, key=LAYOUT.key, chunk=shard, round=9, count=version, length=size
    )


def receive(inbox: Inbox, header: Header, number: float) -> None:
    memory = inbox.target(header)
    memory[:] = np.full(header.length // 4, number, np.float32).data.cast("B")
    inbox.take(Frame(header, memory))


def test_each_shard_comes_into_its_place_of_the_vector() -> None:
    asked = Asked()
    inbox = asked.inbox()
    for shard in (2, 0, 1):
        assert not asked.pull.done
        receive(inbox, value(shard, version=shard + 5), shard)
    assert asked.pull.done and asked.pull.versions == [5, 6, 7]
    assert asked.vector.tolist() == [0.0] * 16 + [1.0] * 16 + [2.0] * 8
    assert not asked.outgoing


def test_a_value_that_was_cut_off_comes_again() -> None:
    asked = Asked()
    before = asked.inbox()
    before.target(value(0))[:8] = bytes(range(8))
    before.end()
    assert asked.pull.versions == [0, 0, 0]
    asked.outgoing.reopened()
    while asked.outgoing.take() is not None:
        pass
    after = asked.inbox()
    for shard in range(LAYOUT.shards):
        receive(after, value(shard), 3.0)
    assert asked.pull.done and np.all(asked.vector == 3.0)


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_a_pull_that_is_given_up_ends_when_nobody_writes_any_more(is_cut_off: bool) -> None:
    asked = Asked()
    inbox = asked.inbox()
    inbox.target(value(0))
    ended: list[Any] = []

    def give_up() -> None:
        with asked.shared.changed:
            asked.outgoing.give_up(LAYOUT.key, 9)
            asked.pull.wait_for_writers()
            ended.append(True)

    waiting = threading.Thread(target=give_up, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert not ended
    if is_cut_off:
        inbox.end()
    else:
        inbox.take(Frame(value(0), memoryview(bytes(64))))
    waiting.join(5.0)
    assert ended
    assert inbox.target(value(1)) is SKIP


def test_a_value_of_another_size_is_refused() -> None:
    header = value(2)
    header.length += 4
    with pytest.raises(BadFrameError, match="sent 36 bytes of array 0 of shard 2"):
        Asked().inbox().target(header)
