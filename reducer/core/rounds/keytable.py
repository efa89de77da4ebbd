"""The keys of a run in a stream: names, positions, and when one of them is forgotten."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from reducer.core.containers.listing import Listing
from reducer.core.containers.tables import Numbered
from reducer.core.limits.records import KEY, KEY_RANK, STREAM, Records, text_bytes
from reducer.core.rounds.progress import KeyProgress
from reducer.core.rounds.untold import ENTRY, Untold, payload_of
from reducer.core.surface.buffer import Buffer
from reducer.wire.errors import ProtocolError, RecordsError
from reducer.wire.keys import key_id


class KeyTable:
    """`listing` has all keys, to be walked in parts.

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
        untold: Untold,
    ) -> None:
        self._untold = untold
        self.records = records
        self._idle_keys = idle
        self._job = job
        self._world_size = world_size
        self._size = KEY + KEY_RANK * world_size
        self._max_keys = max_keys
        self._moved = moved
        self.listing: Listing[KeyProgress] = Listing()
        self._keys: Numbered[KeyProgress] = Numbered()
        # Each key once at most: whoever repeats that it has nothing new makes nothing longer.
        self._idle: deque[tuple[float, KeyProgress]] = deque()

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
        self._untold.add(key, key.holds_stable)  # first: where this fails, nothing is lost
        freed, cost = key.release()
        self._untold.charge(key, cost)
        self.maybe_idle(key)
        return freed

    def entries(self, payload: memoryview, rank: int, now: float) -> list[tuple[KeyProgress, int]]:
        """What a rank's HEARTBEAT says more of a key than is known, once for each key.

        Raises ProtocolError for a broken list, and RecordsError, before the first is given.
        """
        if len(payload) % ENTRY.size:
            raise ProtocolError(f"a heartbeat of {len(payload)} bytes is no list of entries")
        if self._moved:
            for id_, _ in ENTRY.iter_unpack(payload):
                self.maybe_idle(self.open(id_, now))
        found: dict[KeyProgress, int] = {}
        for id_, done in ENTRY.iter_unpack(payload):
            key = self._keys.get(id_)
            if key is not None:
                key.touched_at = now
                if key.is_news(rank, done) and done > found.get(key, 0):
                    found[key] = done
        return list(found.items())

    def payload(self, keys: list[KeyProgress], now: float) -> bytes:
        """The stable positions of some keys, for a rank that may have missed them."""
        for key in keys:
            key.touched_at = now
        return payload_of(key for key in keys if key.stable)

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
            if key in self._untold:
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
            self._untold.drop_last()
        if not len(self._keys):
            self.records.give(STREAM)
            took += STREAM
        return took


class IdleKeys:
    """The tables of a run that have idle keys, each once, and since when the first of these waits.

    One that has waited before comes behind the others: it may have to wait twice as long. Tables
    that are over come first; their records take room until they are taken apart.
    """

    def __init__(self) -> None:
        self._since: OrderedDict[KeyTable, float] = OrderedDict()
        self._over: deque[KeyTable] = deque()

    def __len__(self) -> int:
        return len(self._since)

    @property
    def is_clean(self) -> bool:
        """Whether no table is over."""
        return not self._over

    def wait(self, table: KeyTable, since: float) -> None:
        self._since[table] = since

    def end(self, table: KeyTable) -> None:
        """The table is not to be used any more."""
        self._since.pop(table, None)
        self._over.append(table)

    def give_up(self) -> None:
        """Forget the tables that are over at once, without a look at their records."""
        self._over.clear()

    def take_apart(self, most: int) -> int:
        """Forget keys of tables that are over; the bytes of their records, about `most` at most."""
        took = 0
        while self._over and took < most:
            table = self._over[0]
            took += table.take_apart(most - took)
            if not len(table):
                self._over.popleft()
        return took

    def forget(self, before: float, most: int) -> int:
        """Forget keys that are over, or idle since `before`; the bytes of the records looked at,
        about `most` at most."""
        looked = self.take_apart(most)
        while self._since and looked < most:
            table, since = next(iter(self._since.items()))
            if since >= before:
                break
            looked += table.forget_idle(before, most - looked)
            first = table.idle_since
            if first is None or first >= before:
                del self._since[table]
                if first is not None:
                    self._since[table] = first
        return looked
