"""The keys of a job on this lane: names, done and stable positions, and when one is forgotten."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from reducer.core.containers.listing import Listing
from reducer.core.containers.tables import Numbered, OrderedSet
from reducer.core.limits.records import KEY, KEY_RANK, STREAM, Records, text_bytes
from reducer.core.rounds.idle import IdleKeys
from reducer.core.rounds.progress import KeyProgress
from reducer.core.surface.buffer import Buffer
from reducer.wire.errors import ProtocolError, RecordsError
from reducer.wire.header import HEADER_SIZE
from reducer.wire.keys import key_id

_ENTRY: Final = struct.Struct("<QQ")


class KeyTable:
    """`listing` has all keys, to be walked in parts.

    `unreported` is the cost of what became stable and has not been `told`.

    `moved`: an earlier stream may have known more keys, so that a rank may speak here of one that
    is new (PROTOCOL.md, section 11).
    """

    def __init__(
        self,
        job: str,
        world_size: int,
        max_keys: int,
        moved: bool,
        records: Records,
        idle: IdleKeys,
    ) -> None:
        self.records = records
        self._idle_keys = idle
        self._job = job
        self._world_size = world_size
        self._size = KEY + KEY_RANK * world_size
        self._max_keys = max_keys
        self._moved = moved
        self.listing: Listing[KeyProgress] = Listing()
        self._keys: Numbered[KeyProgress] = Numbered()
        # Keys whose stable position has changed, and nobody was told: those that give credit first.
        self._credited: OrderedSet[KeyProgress] = OrderedSet()
        self._changed: OrderedSet[KeyProgress] = OrderedSet()
        # Each key once at most: whoever repeats that it has nothing new makes nothing longer.
        self._idle: deque[tuple[float, KeyProgress]] = deque()
        self.unreported = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._keys

    def __getitem__(self, id_: int) -> KeyProgress:
        return self._keys[id_]

    def __iter__(self) -> Iterator[KeyProgress]:
        return iter(self._keys.values())

    def open(self, id_: int, now: float) -> KeyProgress:
        """The record of a key, made when it is new; raises RecordsError."""
        key = self._keys.get(id_)
        if key is None:
            if len(self._keys) >= self._max_keys:
                raise RecordsError(
                    f"job {self._job!r} has {len(self._keys):,} keys in use, "
                    f"the limit is {self._max_keys:,} (--job-keys): are keys made anew each step?"
                )
            self.records.take(self._size)
            try:
                self._keys[id_] = key = KeyProgress(id_, self._world_size)
                self.listing.add(key)
            except Exception:  # no memory: the key is nowhere, or its run cannot be taken apart
                self._keys.pop(id_)
                self.records.give(self._size)
                raise
            self.records.keys += 1
        key.touched_at = now
        return key

    def announce(self, id_: int, name: str, now: float) -> None:
        """The name behind an id; raises ProtocolError for a false one and for a collision."""
        if key_id(name) != id_:
            raise ProtocolError(f"{id_:#x} is not the id of key {name!r}")
        key = self.open(id_, now)
        if key.name and key.name != name:
            raise ProtocolError(
                f"keys {key.name!r} and {name!r} have the same id {id_:#x}: rename one of them"
            )
        if not key.name:
            self.records.take(text_bytes(name))
            key.name = name
        self.maybe_idle(key)

    def report(self, key: KeyProgress, rank: int, done: int) -> list[Buffer] | None:
        """Take a rank's done position; the results that are stable by it, None if none can be."""
        if not key.report(rank, done):
            return None
        if key.holds_stable:  # first: where this fails, nothing is lost
            self._credited.add(key)
            self._changed.discard(key)
        elif not key.unreported:
            self._changed.add(key)
        freed, cost = key.release()
        key.unreported += cost
        self.unreported += cost
        self.maybe_idle(key)
        return freed

    def entries(self, payload: memoryview, rank: int, now: float) -> list[tuple[KeyProgress, int]]:
        """What a rank's HEARTBEAT says more of a key than is known, once for each key.

        Raises ProtocolError for a broken list, and RecordsError, before the first is given.
        """
        if len(payload) % _ENTRY.size:
            raise ProtocolError(f"a heartbeat of {len(payload)} bytes is no list of entries")
        if self._moved:
            for id_, _ in _ENTRY.iter_unpack(payload):
                self.maybe_idle(self.open(id_, now))
        found: dict[KeyProgress, int] = {}
        for id_, done in _ENTRY.iter_unpack(payload):
            key = self._keys.get(id_)
            if key is not None:
                key.touched_at = now
                if key.is_news(rank, done) and done > found.get(key, 0):
                    found[key] = done
        return list(found.items())

    def told(self, key: KeyProgress) -> None:
        """A frame carries the key's stable position to every rank of the job."""
        if self._credited.discard(key):
            self.unreported -= key.unreported
            key.unreported = 0
        else:
            self._changed.discard(key)

    @property
    def has_news(self) -> bool:
        """Whether stable positions have changed that nobody was told."""
        return len(self._credited) + len(self._changed) > 0

    def news(self, most: int) -> bytes:
        """`most` stable positions that have changed, from now on told."""
        keys = self._credited.first(most)
        keys += self._changed.first(most - len(keys))
        for key in keys:
            self.told(key)
        return _payload(keys)

    def payload(self, keys: list[KeyProgress], now: float) -> bytes:
        """The stable positions of some keys, for a rank that may have missed them."""
        for key in keys:
            key.touched_at = now
        return _payload(key for key in keys if key.stable)

    def maybe_idle(self, key: KeyProgress) -> None:
        if not key.rounds and not key.idles:
            key.idles = True
            if not self._idle:
                self._idle_keys.wait(self, key.touched_at)
            self._idle.append((key.touched_at, key))

    @property
    def idle_since(self) -> float | None:
        """When the key that has its turn first to be forgotten was touched."""
        return self._idle[0][0] if self._idle else None

    def forget_idle(self, before: float, most: int) -> int:
        """Drop the records of keys of which nothing is open since `before`.

        Returns what the records take of those that had their turn: `most` bytes, or one key more.
        One that was touched meanwhile waits again: nothing else may come that puts it into the
        queue. So does one whose position nobody was told: it is still known, and in the account.
        """
        looked = 0
        while looked < most and self._idle and self._idle[0][0] < before:
            looked += self._size
            _, key = self._idle.popleft()
            key.idles = False
            if key in self._changed or key in self._credited:
                key.touched_at = max(before, key.touched_at)
            if key.touched_at >= before:
                self.maybe_idle(key)
            elif not key.rounds:
                self._keys.pop(key.id)
                self._give_back(key)
        return looked

    def _give_back(self, key: KeyProgress) -> None:
        self.listing.remove(key)
        self.records.give(self._size)
        self.records.keys -= 1
        if key.name:
            self.records.give(text_bytes(key.name))

    def end(self) -> None:
        """The table is not to be used any more: its run takes it apart, a part at a time."""
        self._idle_keys.end(self)

    def take_apart(self, most: int) -> int:
        """Forget rounds and keys until their records took `most` bytes, and at the end the table;
        the bytes."""
        took = 0
        while took < most and len(self._keys):
            key = self._keys.pop_last()
            took += key.forget_rounds(most - took)
            if key.rounds:
                self._keys[key.id] = key
                break
            self._give_back(key)
            took += self._size
            if self._idle:
                self._idle.pop()
            for untold in (self._credited, self._changed):
                if len(untold):
                    untold.pop_last()
        if not len(self._keys):
            self.records.give(STREAM)
            took += STREAM
        return took


def entries_in(heartbeat: bytes) -> int:
    """How many stable positions the frame tells."""
    return (len(heartbeat) - HEADER_SIZE) // _ENTRY.size


def _payload(keys: Iterable[KeyProgress]) -> bytes:
    return b"".join([_ENTRY.pack(key.id, key.stable) for key in keys])
