"""The registry of a reducer that was started with ``--registry``."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from reducer.cluster.addresses import normalize_address
from reducer.registry import limits
from reducer.wire import messages
from reducer.wire.checks import TOKEN_BYTES
from reducer.wire.messages import RegistryCall, RegistryRecord
from reducer_client.errors import (
    ClosedError,
    QuotaExceededError,
    ReducerError,
    ReducerUnavailableError,
)
from reducer_client.registry.dial import Dialer
from reducer_client.registry.interface import Record
from reducer_client.registry.link import Call, HeldLease, Link
from reducer_client.registry.refusals import client_errors

DEFAULT_TIMEOUT = 10.0
# A watch asks again after this time, so that a dead connection is noticed.
_ASKS_AGAIN = 10.0
# What an answer may take longer than a watch, while the registry is connected.
_ON_THE_WAY = 1.0
_MOST_KNOWN = 64
_SETS_AT_ONCE = 16  # of one connection


@dataclass(frozen=True)
class _Known:
    """A record as one start of the registry gave it, at a revision."""

    boot: bytes
    revision: int
    record: Record


_NOTHING = _Known(b"", 0, Record("", 0, b"", {}))


class DaemonRegistry:
    """A `reducer_client.registry.interface.Registry` at the address of a reducer.

    The connection is made by the first call, and made again whenever it was lost. Leases survive a
    restart of the reducer, since they are renewed.

    Args:
        address: host and port of the reducer.
        job: the job to which the records belong. Other jobs have records of their own.
        timeout: seconds after which a call without an answer raises ReducerUnavailableError.
        key: the job's key, of a reducer in mode psk (`reducer_client.config.resolve_key`).
        tls: files of certificate, private key and CA, of a reducer in mode tls.

    A forked child cannot use the object of its parent.
    """

    def __init__(
        self,
        address: str,
        job: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        key: bytes = b"",
        tls: tuple[str, str, str] | None = None,
    ) -> None:
        with client_errors():
            limits.check_job(job)
        self._address = normalize_address(address)
        self._timeout = timeout
        self._pid = os.getpid()
        self._link = Link(Dialer(self._address, job, key, tls), timeout)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._sets = threading.BoundedSemaphore(_SETS_AT_ONCE)

    def get(self, name: str) -> Record:
        return self._get(name, self._base(name), 0.0, time.monotonic() + self._timeout)

    def cas(
        self, name: str, version: int, value: bytes, incarnation: str = ""
    ) -> tuple[bool, Record]:
        with client_errors():
            limits.check_name(name)
            limits.check_document(value)
        until = time.monotonic() + self._timeout
        if not self._sets.acquire(timeout=self._timeout):
            raise self._unavailable("other calls of cas wait for it")
        try:
            base = self._base(name)
            call = Call(
                RegistryCall(
                    "cas",
                    name=name,
                    version=version,
                    incarnation=bytes.fromhex(incarnation),
                    value=bytes(value),
                    token=secrets.token_bytes(TOKEN_BYTES),
                    boot=base.boot,
                    revision=base.revision,
                )
            )
            parts = self._answer(call, until)
        finally:
            self._sets.release()
        record = self._learn(name, base, parts)
        done = parts[0].done
        if not done and call.was_repeated and record.version - version >= limits.KEPT_TOKENS:
            raise self._unavailable(
                f"the answer was lost, and record {name!r} has changed so often since that the "
                "registry does not remember this call"
            )
        return done, record

    def watch(self, name: str, seen: Record, timeout: float) -> Record:
        until = time.monotonic() + timeout
        limit = max(until, time.monotonic() + self._timeout)
        while True:
            base = self._base(name)
            left = max(0.0, until - time.monotonic())
            # The registry knows what it told, not what was seen: it waits only if that is the same.
            wait = min(left, _ASKS_AGAIN) if base.record == seen else 0.0
            record = self._get(name, base, wait, limit)
            if record != seen or time.monotonic() >= until:
                return record

    def lease(self, name: str, holder: str, value: bytes, seconds: float) -> DaemonLease:
        with client_errors():
            limits.check_name(name)
            limits.check_holder(holder)
            limits.check_lease(value, seconds)
        held = HeldLease(name, holder, bytes(value), seconds)
        self._answer(Call(held.call(seconds)), time.monotonic() + self._timeout)
        self._link.hold(held)
        return DaemonLease(self, held)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._link.close()

    def abandon(self) -> None:
        """End this client as if its process had died: its leases lapse."""
        self._link.close(ends_leases=False)

    def change(self, held: HeldLease, value: bytes) -> None:
        with client_errors():
            limits.check_lease(value, held.seconds)
        before, held.value = held.value, bytes(value)
        try:
            self._answer(Call(held.call(held.seconds)), time.monotonic() + self._timeout)
        except QuotaExceededError:
            held.value = before
            raise

    def end(self, held: HeldLease) -> None:
        if os.getpid() != self._pid or not self._link.release(held):
            return
        with suppress(ReducerError):  # the lease lapses, or `DaemonRegistry.close` has ended it
            self._answer(Call(held.call(0.0)), time.monotonic() + self._timeout)

    def _get(self, name: str, base: _Known, seconds: float, until: float) -> Record:
        with client_errors():
            limits.check_name(name)
        call = RegistryCall(
            "get",
            name=name,
            milliseconds=round(seconds * 1000),
            boot=base.boot,
            revision=base.revision,
        )
        return self._learn(name, base, self._answer(Call(call, seconds), until))

    def _answer(self, call: Call, until: float) -> list[RegistryRecord]:
        """Returns the parts of the answer."""
        if os.getpid() != self._pid:
            raise ClosedError("this registry is the parent process's", reason="forked")
        number = self._link.start(call)
        call.ended.wait(max(0.0, until - time.monotonic()))
        if not call.ended.is_set() and self._link.is_connected and call.waits:
            call.ended.wait(_ON_THE_WAY)
        if not call.ended.is_set():
            self._link.give_up(number)
            raise self._unavailable(self._link.cause or "no answer came")
        if call.error is not None:
            raise call.error
        return call.parts

    def _unavailable(self, why: str) -> ReducerUnavailableError:
        return ReducerUnavailableError(
            f"the registry at {self._address} gave no answer within {self._timeout:g} s: {why}"
        )

    def _base(self, name: str) -> _Known:
        with self._lock:
            return self._known.get(name, _NOTHING)

    def _learn(self, name: str, base: _Known, parts: list[RegistryRecord]) -> Record:
        """Apply the changes to what was known when the call was made."""
        record = _apply(base.record, parts)
        known = _Known(parts[0].boot, parts[0].revision, record)
        with self._lock:
            newest = self._known.get(name, _NOTHING)
            if newest.boot != known.boot or newest.revision <= known.revision:
                self._known[name] = known
            self._known.move_to_end(name)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return record


class DaemonLease:
    """A `reducer_client.registry.interface.Lease` in the registry of a reducer."""

    def __init__(self, registry: DaemonRegistry, held: HeldLease) -> None:
        self._registry = registry
        self._held = held

    def change(self, value: bytes) -> None:
        self._registry.change(self._held, value)

    def close(self) -> None:
        self._registry.end(self._held)


def _apply(record: Record, parts: list[messages.RegistryRecord]) -> Record:
    """The record after the changes in an answer."""
    version, value, leases = record.version, record.value, dict(record.leases)
    for part in parts:
        if part.whole:
            version, value, leases = 0, b"", {}
        if part.version != version:  # else the document is known
            version, value = part.version, part.value
        for holder in part.gone:
            leases.pop(holder, None)
        leases.update(part.leases)
    return Record(parts[0].incarnation.hex(), version, value, leases)
