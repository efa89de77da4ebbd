"""Where the partitions of a job's tables live, and which of these processes live."""

from __future__ import annotations

from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.registry.dial import Dialer
from reducer_client.tables.places_document import Entry, Seat, decode
from reducer_client.tables.probe import ask_lane, question

SECONDS = 60.0  # for the answer of a reducer that has just started


class Places:
    """``addresses``: the reducers as the workers know them, with one lane each."""

    def __init__(self, registry: DaemonRegistry, job: str, addresses: list[str]) -> None:
        self._registry = registry
        self._job = job
        self._addresses = addresses
        self._incarnations = [self._ask(reducer) for reducer in range(len(addresses))]

    def _ask(self, reducer: int) -> bytes:
        dialer = Dialer(self._addresses[reducer], self._job)
        answer = ask_lane(dialer, question(self._job, ""), SECONDS)
        assert answer is not None, f"reducer {reducer} does not answer"
        return answer.incarnation

    def started(self, reducer: int) -> None:
        """The reducer was killed, and has started again."""
        self._incarnations[reducer] = self._ask(reducer)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return decode(self._registry.get("tables/").value).partitions

    def have_backups(self) -> bool:
        """Whether each partition has a primary and a full backup that live."""
        return all(
            entry.can_fail_over and all(map(self._lives, (entry.primary, entry.backup)))
            for entry in self.entries
        )

    def _lives(self, seat: Seat | None) -> bool:
        return seat is not None and seat.incarnation == self._incarnations[seat.slot]

    def used(self) -> list[int]:
        """The reducers that have a partition."""
        seats = [seat for entry in self.entries for seat in (entry.primary, entry.backup)]
        return sorted({seat.slot for seat in seats if seat is not None})
