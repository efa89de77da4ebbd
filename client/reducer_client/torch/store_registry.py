"""A registry over torch's TCPStore, for jobs whose reducers have none.

A TCPStore has no leases, no watches and no clock. Here a lease is a key with a counter that its
holder raises. A reader takes the lease for over when it has not seen the counter move for the time
of the lease, by its own monotonic clock. A watch reads the record again and again.

Keys below the prefix, each with text, since `compare_set` takes text:

- ``incarnation``;
- ``NAME/document``: version, tokens of the last changes and the document;
- ``NAME/holders``: the holders of leases. A lease is in effect if its holder is in this list;
- ``NAME/lease/HOLDER``: identity of the lease, counter, seconds and value. Such a key is never
  removed, since reading a key that is missing would block.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from torch._C._distributed_c10d import Store, TCPStore

from reducer.registry import limits
from reducer_client.errors import ClosedError, ReducerError, ReducerUnavailableError
from reducer_client.registry.interface import Record
from reducer_client.registry.refusals import client_errors

DEFAULT_TIMEOUT = 10.0
DEFAULT_INTERVAL = 0.2  # between two reads of a watch
RENEWALS = 3  # in the time of a lease
_CONNECT_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_CLOSE_SECONDS = 2.0
# No key has this value, so comparing with it reads a key without blocking, and sets nothing.
_NEVER = " "
# A lease that has been over for so many times its time is taken out of the list of holders.
_FORGOTTEN_AFTER = 2.0

T = TypeVar("T")


@dataclass
class _Task:
    """A piece of work of the thread. ``until``: nobody waits for it any longer."""

    run: Callable[[TCPStore], Any]
    until: float
    result: Any = None
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class _Document(NamedTuple):
    version: int
    value: bytes
    tokens: tuple[str, ...]


@dataclass
class _Beat:
    """What a reader has seen of a lease: its identity and counter, and when this came."""

    mark: tuple[str, int]
    since: float
    seconds: float
    value: bytes


class StoreRegistry:
    """A `reducer_client.registry.interface.Registry` in the TCPStore of a job.

    The object has a connection of its own to the store's server, in a thread. The records are lost
    with that server, which is usually in the process of rank 0 or of torchrun. A lease of a dead
    process ends up to its time later for a reader that has not read the record before.

    **A TCPStore authenticates nobody**: whoever reaches its port can read and change every record.
    Use the registry of a reducer with a key (`reducer_client.registry.daemon`) where that matters.

    Args:
        store: any client or server of the store. It is asked only for the server's address.
        prefix: begins the keys. Objects with another prefix have other records.
        timeout: seconds after which a call without an answer raises ReducerUnavailableError.
        interval: seconds between two reads of a watch.

    Raises TypeError for another kind of store.
    """

    def __init__(
        self,
        store: Store,
        *,
        prefix: str = "reducer/registry",
        timeout: float = DEFAULT_TIMEOUT,
        interval: float = DEFAULT_INTERVAL,
    ) -> None:
        if not isinstance(store, TCPStore):
            raise TypeError(f"store: expected a TCPStore, got {type(store).__name__}")
        self._host, self._port = store.host, store.port
        self._prefix = prefix
        self._timeout = timeout
        self._interval = interval
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._cause = ""
        # Only the thread uses these.
        self._store: TCPStore | None = None
        self._incarnation = ""
        self._leases: dict[tuple[str, str], StoreLease] = {}
        self._beats: dict[str, dict[str, _Beat]] = {}
        self._thread = threading.Thread(target=self._serve, name="registry", daemon=True)
        self._thread.start()

    def get(self, name: str) -> Record:
        with client_errors():
            limits.check_name(name)
        return self._do(lambda store: self._read(store, name))

    def cas(
        self, name: str, version: int, value: bytes, incarnation: str = ""
    ) -> tuple[bool, Record]:
        with client_errors():
            limits.check_name(name)
            limits.check_document(value)
        new, token, tries = bytes(value), secrets.token_hex(8), 0

        def set_(store: TCPStore) -> tuple[bool, Record]:
            nonlocal tries
            tries += 1
            if incarnation not in ("", self._incarnation):
                return False, self._read(store, name)
            return self._set(store, name, version, new, token)

        done, record = self._do(set_)
        if not done and tries > 1 and record.version - version >= limits.KEPT_TOKENS:
            raise self._unavailable(
                f"the answer was lost, and record {name!r} has changed too often since to tell "
                "whether this call has changed it"
            )
        return done, record

    def watch(self, name: str, seen: Record, timeout: float) -> Record:
        until = time.monotonic() + timeout
        while (record := self.get(name)) == seen and (left := until - time.monotonic()) > 0:
            self._closing.wait(min(left, self._interval))
        return record

    def lease(self, name: str, holder: str, value: bytes, seconds: float) -> StoreLease:
        with client_errors():
            limits.check_name(name)
            limits.check_holder(holder)
            limits.check_lease(value, seconds)
        lease = StoreLease(self, name, holder, bytes(value), seconds)

        def begin(store: TCPStore) -> None:
            self._renew(store, lease)
            self._leases[name, holder] = lease

        self._do(begin)
        return lease

    def change(self, lease: StoreLease, value: bytes) -> None:
        with client_errors():
            limits.check_lease(value, lease.seconds)
        lease.value = bytes(value)
        self._do(lambda store: self._renew(store, lease))

    def end(self, lease: StoreLease) -> None:
        with suppress(ReducerError):  # the lease lapses, or `close` has ended it
            self._do(lambda store: self._release(store, lease))

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        if not self._closing.is_set():
            leases = list(self._leases.values())
            until = time.monotonic() + _CLOSE_SECONDS
            self._closing.set()
            if leases:
                self._tasks.put(_Task(lambda store: self._release_all(store, leases), until))
            self._tasks.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def abandon(self) -> None:
        """End this client as if its process had died: its leases lapse."""
        self._closing.set()
        self._tasks.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _do(self, run: Callable[[TCPStore], T]) -> T:
        """Run a function of the store in the thread. It may be run again after an error."""
        if os.getpid() != self._pid:
            raise ClosedError("this registry is the parent process's", reason="forked")
        task = _Task(run, time.monotonic() + self._timeout)
        if not self._closing.is_set():
            self._tasks.put(task)
            while not task.done.wait(min(self._interval, self._timeout)):
                if self._closing.is_set() or time.monotonic() >= task.until:
                    break
        if task.error is not None:
            raise task.error
        if task.done.is_set():
            result: T = task.result
            return result
        if self._closing.is_set():
            raise ClosedError("this registry is closed", reason="closed")
        raise self._unavailable(self._cause or "it does not answer")

    def _unavailable(self, why: str) -> ReducerUnavailableError:
        return ReducerUnavailableError(
            f"the TCPStore at {self._host}:{self._port} gave no answer within {self._timeout:g} s: "
            f"{why}"
        )

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._serve_tasks()
        finally:
            self._store = None  # closes the connection

    def _serve_tasks(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._until_renewal())
            except queue.Empty:
                self._renew_due()
                continue
            if task is None:
                return
            self._run(task)
            self._renew_due()

    def _until_renewal(self) -> float | None:
        due = min((lease.due for lease in self._leases.values()), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _run(self, task: _Task) -> None:
        while time.monotonic() < task.until:
            try:
                task.result = task.run(self._connected())
            except RuntimeError as error:  # torch's errors of the network are such
                self._lose(error)
                time.sleep(_RETRY_SECONDS)
                continue
            except Exception as error:
                task.error = error
            task.done.set()
            return

    def _renew_due(self) -> None:
        now = time.monotonic()
        for lease in list(self._leases.values()):
            if lease.due > now:
                continue
            lease.due = now + lease.seconds / RENEWALS  # also if this fails
            try:
                self._renew(self._connected(), lease)
            except RuntimeError as error:
                self._lose(error)
                return

    def _lose(self, error: Exception) -> None:
        self._store = None
        self._cause = str(error).partition("\n")[0]

    def _connected(self) -> TCPStore:
        if self._store is None:
            timeout = timedelta(seconds=min(_CONNECT_SECONDS, self._timeout))
            store = TCPStore(self._host, self._port, None, False, timeout, wait_for_workers=False)
            self._incarnation = _text(
                store.compare_set(f"{self._prefix}/incarnation", "", secrets.token_hex(16))
            )
            self._store, self._cause = store, ""
        return self._store

    # --- records --------------------------------------------------------------------------------

    def _key(self, name: str, *parts: str) -> str:
        return "/".join((self._prefix, name, *parts))

    def _read(self, store: TCPStore, name: str) -> Record:
        document = _parse_document(_peek(store, self._key(name, "document")))
        return self._record(store, name, document)

    def _record(self, store: TCPStore, name: str, document: _Document) -> Record:
        leases = self._read_leases(store, name)
        return Record(self._incarnation, document.version, document.value, leases)

    def _set(
        self, store: TCPStore, name: str, version: int, value: bytes, token: str
    ) -> tuple[bool, Record]:
        key = self._key(name, "document")
        while True:
            text = _peek(store, key)
            before = _parse_document(text)
            done = token in before.tokens  # the answer was lost
            if done or before.version != version:
                return done, self._record(store, name, before)
            tokens = (*before.tokens, token)[-limits.KEPT_TOKENS :]
            after = _Document(version + 1, value, tokens)
            new = _document_text(after)
            if _text(store.compare_set(key, text, new)) == new:
                return True, self._record(store, name, after)

    def _holders(self, store: TCPStore, name: str) -> tuple[str, list[str]]:
        text = _peek(store, self._key(name, "holders"))
        return text, json.loads(text) if text else []

    def _change_holders(self, store: TCPStore, name: str, add: str, drop: set[str]) -> None:
        key = self._key(name, "holders")
        while True:
            text, holders = self._holders(store, name)
            new = [holder for holder in holders if holder not in drop]
            if add and add not in new:
                new.append(add)
            if new == holders:
                return
            if _text(store.compare_set(key, text, json.dumps(new))) == json.dumps(new):
                return

    def _renew(self, store: TCPStore, lease: StoreLease) -> None:
        lease.count += 1
        lease.due = time.monotonic() + lease.seconds / RENEWALS
        text = json.dumps([lease.id, lease.count, lease.seconds, _to_text(lease.value)])
        store.set(self._key(lease.name, "lease", lease.holder), text)
        self._change_holders(store, lease.name, lease.holder, set())

    def _release(self, store: TCPStore, lease: StoreLease) -> None:
        if self._leases.get((lease.name, lease.holder)) is lease:
            self._change_holders(store, lease.name, "", {lease.holder})
            del self._leases[lease.name, lease.holder]

    def _release_all(self, store: TCPStore, leases: list[StoreLease]) -> None:
        for lease in leases:
            self._release(store, lease)

    def _read_leases(self, store: TCPStore, name: str) -> dict[str, bytes]:
        """The leases in effect. Forgets holders whose leases were over long ago."""
        _, holders = self._holders(store, name)
        if not holders:
            self._beats.pop(name, None)
            return {}
        now = time.monotonic()
        texts = store.multi_get([self._key(name, "lease", holder) for holder in holders])
        seen = self._beats.get(name, {})
        beats: dict[str, _Beat] = {}
        for holder, text in zip(holders, texts, strict=True):
            id_, count, seconds, value = json.loads(text)
            beat = seen.get(holder)
            if beat is None or beat.mark != (id_, count):
                beat = _Beat((id_, count), now, seconds, _from_text(value))
            beats[holder] = beat
        self._beats[name] = beats
        silent = {holder: (now - beat.since) / beat.seconds for holder, beat in beats.items()}
        forgotten = {holder for holder, times in silent.items() if times >= _FORGOTTEN_AFTER}
        if forgotten:
            self._change_holders(store, name, "", forgotten)
        return {holder: beat.value for holder, beat in beats.items() if silent[holder] < 1.0}


class StoreLease:
    """A `reducer_client.registry.interface.Lease` in a TCPStore."""

    def __init__(
        self, registry: StoreRegistry, name: str, holder: str, value: bytes, seconds: float
    ) -> None:
        self.name = name
        self.holder = holder
        self.value = value
        self.seconds = seconds
        self.id = secrets.token_hex(8)
        self.count = 0
        self.due = 0.0
        self._registry = registry

    def change(self, value: bytes) -> None:
        self._registry.change(self, value)

    def close(self) -> None:
        self._registry.end(self)


def _peek(store: TCPStore, key: str) -> str:
    """The text of a key, "" if there is none; does not block as `get` would."""
    text = _text(store.compare_set(key, _NEVER, _NEVER))
    return "" if text == _NEVER else text


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _document_text(document: _Document) -> str:
    return json.dumps([document.version, _to_text(document.value), document.tokens])


def _parse_document(text: str) -> _Document:
    if not text:
        return _Document(0, b"", ())
    version, value, tokens = json.loads(text)
    return _Document(version, _from_text(value), tuple(tokens))


def _to_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _from_text(text: str) -> bytes:
    return base64.b64decode(text)
