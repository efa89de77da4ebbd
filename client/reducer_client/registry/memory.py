"""A registry in the memory of one process, for tests and for programs of one process."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from reducer.registry import limits
from reducer.registry.records import Key, Records
from reducer_client.errors import ClosedError
from reducer_client.registry.interface import Record
from reducer_client.registry.refusals import client_errors


class SharedRecords:
    """The records that several `MemoryRegistry` objects share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.changed = threading.Condition()
        self.records = Records({}, 0, clock())
        self.incarnation = secrets.token_hex(16)
        self.living: set[MemoryRegistry] = set()

    def renew(self) -> float:
        """Renew the leases of all clients, and end the leases of dead ones. Returns the time."""
        now = self.clock()
        for registry in self.living:
            registry.renew(now)
        if self.records.expire(now):
            self.changed.notify_all()
        return now

    def record(self, key: Key) -> Record:
        document = self.records.document(key)
        leases = self.records.leases(key)
        return Record(self.incarnation, document.version, document.value, leases)


class MemoryRegistry:
    """A `reducer_client.registry.interface.Registry` in one process.

    Objects with the same ``shared`` are clients of one registry. Nothing is kept after the process.
    """

    def __init__(self, shared: SharedRecords | None = None, job: str = "local") -> None:
        self._shared = shared or SharedRecords()
        self._job = job
        self._leases: dict[Key, dict[str, MemoryLease]] = {}
        self._is_closed = False
        with self._shared.changed:
            self._shared.living.add(self)

    def get(self, name: str) -> Record:
        with self._locked(name) as (key, _):
            return self._shared.record(key)

    def cas(
        self, name: str, version: int, value: bytes, incarnation: str = ""
    ) -> tuple[bool, Record]:
        with self._locked(name) as (key, now):
            records = self._shared.records
            limits.check_document(value)
            before = records.document(key)
            is_set = before.version == version and incarnation in ("", self._shared.incarnation)
            if is_set:
                document = records.next_document(key, before, bytes(value), b"", now)
                records.set_document(key, document, now)
                self._shared.changed.notify_all()
            return is_set, self._shared.record(key)

    def watch(self, name: str, seen: Record, timeout: float) -> Record:
        until = self._shared.clock() + timeout
        with self._locked(name) as (key, now):
            while (record := self._shared.record(key)) == seen and now < until:
                # A dead client's lease ends without a call of anybody.
                self._shared.changed.wait(min(until, self._shared.records.next_end()) - now)
                self._check_open()
                now = self._shared.renew()
            return record

    def lease(self, name: str, holder: str, value: bytes, seconds: float) -> MemoryLease:
        with self._locked(name) as (key, now):
            self.put(key, holder, value, seconds, now)
            lease = MemoryLease(self, key, holder, bytes(value), seconds)
            self._leases.setdefault(key, {})[holder] = lease
            return lease

    def close(self) -> None:
        with self._shared.changed:
            now = self._shared.clock()
            for key, leases in self._leases.items():
                for holder in leases:
                    self._shared.records.release(key, holder, now)
            self._end()

    def abandon(self) -> None:
        """End this client as if its process had died: its leases lapse."""
        with self._shared.changed:
            self._shared.renew()
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._leases.clear()
        self._shared.living.discard(self)
        self._shared.changed.notify_all()

    def renew(self, now: float) -> None:
        """Renew the leases; the caller has the lock."""
        for key, leases in self._leases.items():
            for holder, lease in leases.items():
                self._shared.records.lease(key, holder, lease.value, lease.seconds, now)

    def put(self, key: Key, holder: str, value: bytes, seconds: float, now: float) -> None:
        """Begin or change a lease; the caller has the lock."""
        if self._shared.records.lease(key, holder, bytes(value), seconds, now):
            self._shared.changed.notify_all()

    def change(self, lease: MemoryLease, value: bytes) -> None:
        with self._locked(lease.key[1]) as (_, now):
            if self._is_current(lease):
                self.put(lease.key, lease.holder, value, lease.seconds, now)
                lease.value = bytes(value)

    def end(self, lease: MemoryLease) -> None:
        with self._shared.changed:
            if self._is_current(lease):
                del self._leases[lease.key][lease.holder]
                self._shared.records.release(lease.key, lease.holder, self._shared.clock())
                self._shared.changed.notify_all()

    def _is_current(self, lease: MemoryLease) -> bool:
        return self._leases.get(lease.key, {}).get(lease.holder) is lease

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this registry is closed", reason="closed")

    @contextmanager
    def _locked(self, name: str) -> Generator[tuple[Key, float]]:
        """Hold the lock; gives the record's key and the time. Raises the client's errors."""
        with client_errors(), self._shared.changed:
            limits.check_name(name)
            self._check_open()
            yield (self._job, name), self._shared.renew()


class MemoryLease:
    """A `reducer_client.registry.interface.Lease` in one process."""

    def __init__(
        self, registry: MemoryRegistry, key: Key, holder: str, value: bytes, seconds: float
    ) -> None:
        self.key = key
        self.holder = holder
        self.value = value
        self.seconds = seconds
        self._registry = registry

    def change(self, value: bytes) -> None:
        self._registry.change(self, value)

    def close(self) -> None:
        self._registry.end(self)
