"""The keys of a job on this lane: names, done and stable positions, and when one is forgotten."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from reducer.core.buffer import Buffer
from reducer.core.progress import KeyProgress
from reducer.errors import ProtocolError, QuotaError
from reducer.wire.codes import MAX_HEARTBEAT_ENTRIES
from reducer.wire.keys import key_id

_ENTRY = struct.Struct("<QQ")


class KeyTable:
    """`unreported` is the cost of what became stable and was not `told` or in `beat_payloads`."""

    def __init__(self, job: str, world_size: int, max_keys: int) -> None:
        self._job = job
        self._world_size = world_size
        self._max_keys = max_keys
        self._keys: dict[int, KeyProgress] = {}
        self._stable_changed: dict[int, KeyProgress] = {}
        self._idle: deque[tuple[float, KeyProgress]] = deque()
        self.unreported = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, id_: int) -> KeyProgress:
        return self._keys[id_]

    def __iter__(self) -> Iterator[KeyProgress]:
        return iter(self._keys.values())

    def open(self, id_: int, now: float) -> KeyProgress:
        """The record of a key, made when it is new; raises QuotaError."""
        key = self._keys.get(id_)
        if key is None:
            if len(self._keys) >= self._max_keys:
                raise QuotaError(
                    f"job {self._job!r} has {len(self._keys):,} keys in use, "
                    f"the limit is {self._max_keys:,}"
                )
            key = self._keys[id_] = KeyProgress(id_, self._world_size)
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
        key.name = name
        self.maybe_idle(key)

    def report(self, key: KeyProgress, rank: int, done: int) -> list[Buffer]:
        """Take a rank's done position; the results that are stable by it."""
        if not key.report(rank, done):
            return []
        freed, cost = key.release()
        self._stable_changed[key.id] = key
        key.unreported += cost
        self.unreported += cost
        self.maybe_idle(key)
        return freed

    def heartbeat(self, rank: int, payload: memoryview, now: float) -> list[Buffer]:
        """The entries of a worker's HEARTBEAT; raises ProtocolError for a broken list."""
        if len(payload) % _ENTRY.size:
            raise ProtocolError(f"a heartbeat of {len(payload)} bytes is no list of entries")
        freed: list[Buffer] = []
        for id_, done in _ENTRY.iter_unpack(payload):
            key = self._keys.get(id_)
            if key is not None:
                key.touched_at = now
                freed += self.report(key, rank, done)
                self.maybe_idle(key)
        return freed

    def told(self, key: KeyProgress) -> None:
        """A RESULT has carried the key's stable position to every rank."""
        if self._stable_changed.pop(key.id, None) is not None:
            self.unreported -= key.unreported
            key.unreported = 0

    def beat_payloads(self) -> list[bytes]:
        """The stable positions that have changed, cut into heartbeats (at least one)."""
        entries = [_ENTRY.pack(key.id, key.stable) for key in self._stable_changed.values()]
        for key in self._stable_changed.values():
            key.unreported = 0
        self._stable_changed.clear()
        self.unreported = 0
        cuts = range(0, max(1, len(entries)), MAX_HEARTBEAT_ENTRIES)
        return [b"".join(entries[start : start + MAX_HEARTBEAT_ENTRIES]) for start in cuts]

    def maybe_idle(self, key: KeyProgress) -> None:
        if not key.rounds:
            self._idle.append((key.touched_at, key))

    def forget_idle(self, before: float) -> None:
        """Drop the records of keys of which nothing is open since `before`."""
        while self._idle and self._idle[0][0] < before:
            _, key = self._idle.popleft()
            if not key.rounds and key.touched_at < before and self._keys.get(key.id) is key:
                del self._keys[key.id]

    def clear(self) -> None:
        self._keys.clear()
        self._stable_changed.clear()
        self._idle.clear()
