"""The order of a lane's waiting orders, and how long they may wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reducer.server.pipe.orders import (
    ORDER_DRAIN,
    ORDER_PING,
    ORDER_REPORT,
    ORDER_SOCKET,
    WAIT_SECONDS,
    Orders,
)
from reducer.wire.header import pack_preface

PREFACE = pack_preface(0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def newcomer(stack: ExitStack) -> socket.socket:
    ours, theirs = socket.socketpair()
    stack.enter_context(theirs)
    return stack.enter_context(ours)


def told(orders: Orders) -> list[bytes]:
    found = []
    while (order := orders.first()) is not None:
        found.append(order.data[:1])
        orders.sent()
    return found


def test_a_question_waits_for_no_socket_and_the_drain_for_all(stack: ExitStack) -> None:
    """As for /healthz of a reducer to which thousands connect."""
    orders = Orders(8)
    orders.drain()
    socks = [newcomer(stack) for _ in range(3)]
    for sock in socks:
        assert orders.take(sock, PREFACE, 0.0)
    orders.ask(ORDER_PING)
    orders.ask(ORDER_REPORT)
    assert told(orders) == [ORDER_PING, ORDER_REPORT, *[ORDER_SOCKET] * 3, ORDER_DRAIN]
    assert all(sock.fileno() == -1 for sock in socks)  # the lane has its own copy


def test_no_more_sockets_wait_than_there_is_room_for(stack: ExitStack) -> None:
    orders = Orders(2)
    socks = [newcomer(stack) for _ in range(3)]
    assert [orders.take(sock, PREFACE, 0.0) for sock in socks] == [True, True, False]
    assert socks[2].fileno() != -1
    orders.sent()
    assert orders.take(socks[2], PREFACE, 0.0)
    orders.close()
    assert all(sock.fileno() == -1 for sock in socks)
    assert orders.first() is None


def test_a_socket_that_waits_too_long_is_closed(stack: ExitStack) -> None:
    orders = Orders(8)
    first, second = newcomer(stack), newcomer(stack)
    orders.take(first, PREFACE, 10.0)
    orders.take(second, PREFACE, 11.0)
    assert orders.close_late(9.99 + WAIT_SECONDS)
    assert (first.fileno() == -1, orders.expired) == (False, 0)
    assert orders.close_late(10.0 + WAIT_SECONDS)
    assert (first.fileno() == -1, second.fileno() == -1, orders.expired) == (True, False, 1)
    assert not orders.close_late(11.0 + WAIT_SECONDS)
    assert told(orders) == []
