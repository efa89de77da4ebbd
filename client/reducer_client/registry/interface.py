"""What every registry offers: records with a document and leases, and four calls on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Record:
    """One record at one moment.

    Attributes:
        incarnation: identifies the storage of the registry, in random hexadecimal digits. Another
            incarnation means that all documents were lost.
        version: the version of the document, greater with each change; 0 if there is no document.
        value: the document; b"" if there is none.
        leases: the values of the leases in effect, by holder.
    """

    incarnation: str
    version: int
    value: bytes
    leases: Mapping[str, bytes]


class Lease(Protocol):
    """A value that stays in a record until `close`, or until its process ends.

    The registry renews the lease in the background. While the registry cannot be reached, the lease
    may lapse. It comes back as soon as the registry can be reached again.
    """

    def change(self, value: bytes) -> None:
        """Replace the value.

        Raises the errors of `Registry.lease`. After an error the lease has the old or the new
        value, and the next renewal gives it the new one. After QuotaExceededError it keeps the old
        one.
        """

    def close(self) -> None:
        """End the lease at once. Raises nothing: a lease that cannot be ended lapses.

        A second call does nothing. If another `Registry.lease` of the same holder has replaced this
        lease, `close` leaves the other one alone.
        """


class Registry(Protocol):
    """Records by name. All methods may be called from several threads at a time.

    All methods but `close` raise

    - `reducer_client.ReducerUnavailableError` if the registry gave no answer within the timeout
      that the object was made with. The text names the address. Later calls try again.
    - `reducer_client.QuotaExceededError` for a text, a value or a number of records above a limit
      (PROTOCOL.md, section 10). Nothing has changed.
    - `reducer_client.AuthenticationError` if the registry, or this client, could not prove its
      identity, or the client's proof is for another job.
    - `reducer_client.ProtocolError` if the process at the address is no registry.
    - `reducer_client.ClosedError` after `close`.
    """

    def get(self, name: str) -> Record:
        """Return the record. A record that does not exist has version 0 and no leases."""

    def cas(
        self, name: str, version: int, value: bytes, incarnation: str = ""
    ) -> tuple[bool, Record]:
        """Compare and set: replace the document if its version is still ``version``.

        With ``incarnation``, a registry that has lost its documents meanwhile changes nothing: its
        first version is not the one that the caller has seen.

        Returns whether this call has replaced the document, and the record after the call. A
        registry with a disk has written the document there.

        A call whose answer was lost is repeated, and the registry recognizes it. So False means
        that this call has changed nothing. After True, the record may already be a later one.

        After ReducerUnavailableError the document may have changed or not; `get` tells.
        """

    def watch(self, name: str, seen: Record, timeout: float) -> Record:
        """Wait until the record differs from ``seen``, at most ``timeout`` seconds; return it.

        Returns a record equal to ``seen`` if nothing has changed. Other calls are not delayed. Of
        several changes in a row, some may be left out.

        While the registry cannot be reached, the call waits, and raises ReducerUnavailableError
        after the registry's timeout or ``timeout``, whichever is later.
        """

    def lease(self, name: str, holder: str, value: bytes, seconds: float) -> Lease:
        """Put ``value`` into the record, for ``seconds`` after the last renewal.

        A holder has one lease in a record. The newest replaces the others.
        """

    def close(self) -> None:
        """End all leases of this object, and release its connection and threads.

        Calls of other threads raise ClosedError. Raises nothing. A second call does nothing.
        """
