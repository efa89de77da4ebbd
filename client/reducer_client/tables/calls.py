"""Calls about tables, and their answers."""

from __future__ import annotations

from collections.abc import Callable

from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.header import Header
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.errors import ReducerError, from_engine
from reducer_client.tables.outgoing import Item


class Call:
    """One call to one lane. ``then`` gets the last answer, with the lock held.

    If the connection is lost between two of several answers, the first ones come twice.
    """

    def __init__(
        self, number: int, message: TableCall, then: Callable[[Notice], None] | None = None
    ) -> None:
        self.message = message
        self.answers: list[Notice] = []
        self.done = False
        self._then = then
        self._number = number

    def item(self, table: int = 0) -> Item:
        return call_item(self._number, self.message, waiter=self, table=table)

    def answered(self, item: Item, header: Header) -> None:
        """A call and its answers, which the thread of the lane passes to `take`."""

    def take(self, notice: Notice) -> None:
        self.answers.append(notice)
        if not notice.more:
            self.done = True
            if self._then is not None:
                self._then(notice)

    def check(self, where: str) -> list[Notice]:
        """The answers. Raises the lane's refusal."""
        for notice in self.answers:
            if notice.code:
                raise refusal(notice, where)
        return self.answers


def call_item(number: int, message: TableCall, waiter: Call | None = None, table: int = 0) -> Item:
    """The frame of a call. Without a waiter no answer is expected."""
    header = Header(kind=MessageKind.TABLE, key=number)
    payload = memoryview(messages.encode(message))
    return Item(header, payload, waiter=waiter, answers=int(waiter is not None), table=table)


def refusal(notice: Notice, where: str) -> ReducerError:
    """The error that a lane tells in a NOTICE."""
    return from_engine((notice.code, f"{where}: {notice.message}", -1, "", "", -1))
