"""The frames of tables by name, for a test that harms one of them in a framed proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from reducer.wire import messages
from reducer.wire.codes import Entry, MessageKind, Outcome
from reducer.wire.header import HEADER_SIZE, Header, unpack_header
from reducer.wire.table_messages import Notice, TableCall
from reducer_client.tables.probe import PARTITION as OF_PROBES
from tests.support.checksum import crc32c
from tests.support.harms import kind_of
from tests.support.proxy import Harm, Stream


def name_of(piece: bytes) -> str:
    """What a frame is: "PUSH", "LOG update", "call set", "news commit" ...; else ""."""
    kind = kind_of(piece)
    if kind is None or len(piece) < HEADER_SIZE:
        return ""
    header = unpack_header(piece[:HEADER_SIZE], crc32c)
    payload = piece[HEADER_SIZE:]
    if len(payload) != header.length:  # the connection ended in the middle
        return ""
    if kind == MessageKind.TABLE:
        return f"call {_call(payload).call}"
    if kind == MessageKind.NOTICE:
        what = "answer" if header.key else "news"
        return f"{what} {messages.decode(Notice, payload).call}"
    if kind == MessageKind.LOG:
        return f"LOG {_entry(header, payload)}"
    if kind == MessageKind.RECEIPT:
        return f"RECEIPT {Outcome(header.flags).name.lower()}"
    return kind.name


def _call(payload: bytes) -> TableCall:
    return messages.decode(TableCall, payload)


def _entry(header: Header, payload: bytes) -> str:
    is_call = header.flags == Entry.CALL
    return _call(payload).call if is_call else Entry(header.flags).name.lower()


class _Armed(NamedTuple):
    partition: int
    name: str
    harm: Harm
    may: Callable[[], bool]

    def matches(self, partition: int | None, piece: bytes) -> bool:
        return partition == self.partition and name_of(piece) == self.name and self.may()


class FrameTrigger:
    """A plan that does a harm to the next frame of a name on the links of a partition.

    These links lead from the workers to the partition's primary, and from the primary to its
    backup. Each `arm` leads to one harm, and `fired` is set when the harm is done.
    """

    def __init__(self) -> None:
        self.fired = threading.Event()
        self._armed: _Armed | None = None
        self._partitions: dict[tuple[int, int], int] = {}  # by reducer and number of the link

    def arm(
        self, partition: int, name: str, harm: Harm, may: Callable[[], bool] = lambda: True
    ) -> None:
        """``may`` is asked when such a frame comes: False: wait for the next one."""
        self.fired.clear()
        self._armed = _Armed(partition, name, harm, may)

    def disarm(self) -> bool:
        """Returns whether no such frame has come."""
        armed, self._armed = self._armed, None
        return armed is not None

    def __call__(self, stream: Stream) -> Harm:
        return self._watch

    async def _watch(self, stream: Stream, piece: bytes) -> None:
        self._maybe_note_partition(stream, piece)
        armed, partition = self._armed, self._partitions.get((stream.index, stream.number))
        if armed is None or not armed.matches(partition, piece):
            await stream.send(piece)
            return
        self._armed = None
        try:
            await armed.harm(stream, piece)
        finally:
            self.fired.set()

    def _maybe_note_partition(self, stream: Stream, piece: bytes) -> None:
        """The first call on a link names its partition."""
        link = stream.index, stream.number
        if link in self._partitions or kind_of(piece) != MessageKind.TABLE:
            return
        partition = _call(piece[HEADER_SIZE:]).partition
        if partition != OF_PROBES:
            self._partitions[link] = partition
