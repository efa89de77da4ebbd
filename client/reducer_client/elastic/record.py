"""The registry's record of a job, as this worker last saw it. A thread follows it."""

from __future__ import annotations

import threading

from reducer_client.elastic.document import Document, decode
from reducer_client.errors import ClosedError, ReducerError
from reducer_client.registry.interface import Record, Registry
from reducer_client.reports import logger

_WATCH = 20.0  # seconds of one watch; the registry answers earlier if the record changes
_RETRY = 0.2  # seconds after a registry that cannot be reached


class JobRecord:
    """Follows one record. `changed` is notified when the record has changed.

    The job needs the registry for changes alone. While the registry cannot be reached, the record
    stays as it was last seen, and the changes wait.
    """

    def __init__(self, registry: Registry, name: str) -> None:
        """Read the record. Raises the errors of `Registry.get`."""
        self.registry = registry
        self.name = name
        self.changed = threading.Condition()
        self.record = registry.get(name)
        self.document = decode(self.record.value)
        self._is_closed = False
        self._thread = threading.Thread(target=self._follow, name="reducer-registry", daemon=True)
        self._thread.start()

    def wait_for_news(self, seen: Record, timeout: float) -> None:
        """Wait until the record is not ``seen`` any more."""
        with self.changed:
            self.changed.wait_for(lambda: self.record is not seen or self._is_closed, timeout)

    def propose(self, seen: Record, document: Document) -> bool:
        """Replace the document of ``seen``. Returns whether this worker has decided.

        Raises the errors of `Registry.cas`.
        """
        done, record = self.registry.cas(
            self.name, seen.version, document.encode(), seen.incarnation
        )
        self._take(record)
        return done

    def living(self, record: Record) -> set[bytes]:
        """The incarnations of the processes that hold a lease in the record."""
        return {bytes.fromhex(holder) for holder in record.leases}

    def close(self) -> None:
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        self.registry.close()
        self._thread.join()

    def _follow(self) -> None:
        is_told = False
        while not self._is_closed:
            try:
                self._take(self.registry.watch(self.name, self.record, _WATCH))
                is_told = False
            except ClosedError:
                return
            except ReducerError as error:
                if not is_told and not self._is_closed:
                    logger.warning("the registry cannot be reached; steps go on, changes of the "
                                   "workers wait: %s", error)  # fmt: skip
                is_told = True
                with self.changed:
                    self.changed.wait_for(lambda: self._is_closed, _RETRY)

    def _take(self, record: Record) -> None:
        document = decode(record.value)
        with self.changed:
            is_older = (
                record.incarnation == self.record.incarnation
                and record.version < self.record.version
            )
            if not is_older:
                self.record, self.document = record, document
                self.changed.notify_all()
