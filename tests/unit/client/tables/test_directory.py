"""Workers that follow the registry's record of places, and decide about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from reducer_client.errors import ReducerUnavailableError, RoundTimeoutError
from reducer_client.registry.interface import Record
from reducer_client.registry.memory import MemoryRegistry, SharedRecords
from reducer_client.tables.directory import Directory, Wish
from reducer_client.tables.places_document import Entry, PlacesDocument, Seat, found
from tests.support.wait import wait_until

NAME = "tables/run"
ADDRESSES = ("a:1", "b:1", "c:1")
SECONDS = 10.0


def name(slot: int, start: int = 0) -> bytes:
    return bytes([slot, start]) + bytes(14)


FIRST = found(ADDRESSES, [[name(slot)] for slot in range(3)])


class Worker:
    """A directory, and what it told."""

    def __init__(self, registry: MemoryRegistry, answers: dict[str, bytes], decides: bool) -> None:
        self.documents: list[PlacesDocument] = []
        self.lost: list[int] = []
        self.late: dict[str, float] = {}  # seconds until a reducer answers

        def probe(address: str, lane: int, seconds: float) -> tuple[int, bytes] | None:
            is_in_time = seconds >= self.late.get(address, 0.0)
            return (0, answers[address]) if address in answers and is_in_time else None

        self.directory = Directory(
            registry,
            NAME,
            decides=decides,
            probe=probe,
            apply=self.documents.append,
            lose=lambda partition, why: self.lost.append(partition),
        )

    def tell(self, kind: str, partition: int, term: int, reducer: bytes = b"") -> None:
        self.directory.tell(Wish(kind, partition, term, reducer))

    def tell_all(self, *wishes: tuple[str, int] | tuple[str, int, bytes]) -> None:
        """Tell wishes of term 1, so that they are decided together."""
        with self.directory._changed:
            for kind, partition, *reducer in wishes:
                self.directory._wishes[kind, partition] = Wish(kind, partition, 1, *reducer)
            self.directory._changed.notify_all()

    @property
    def has_decided(self) -> bool:
        """Whether nothing waits for a decision."""
        return not self.directory._wishes

    def entry(self, partition: int) -> Entry:
        return (self.documents or [FIRST])[-1].partitions[partition]


class CutOff(MemoryRegistry):
    """A registry that cannot be reached while ``is_down``."""

    is_down = False

    def get(self, name: str) -> Record:
        self._check()
        return super().get(name)

    def cas(
        self, name: str, version: int, value: bytes, incarnation: str = ""
    ) -> tuple[bool, Record]:
        self._check()
        return super().cas(name, version, value, incarnation)

    def watch(self, name: str, seen: Record, timeout: float) -> Record:
        self._check()
        return super().watch(name, seen, min(timeout, 0.05))

    def _check(self) -> None:
        if self.is_down:
            raise ReducerUnavailableError("the registry is down")


Start = Callable[..., Worker]


@pytest.fixture
def registry() -> CutOff:
    return CutOff(SharedRecords())


@pytest.fixture
def answers() -> dict[str, bytes]:
    """The incarnations of the reducers that answer now."""
    return {address: name(slot) for slot, address in enumerate(ADDRESSES)}


@pytest.fixture
def start(registry: CutOff, answers: dict[str, bytes]) -> Iterator[Start]:
    made: list[Worker] = []

    def make(decides: bool = True) -> Worker:
        worker = Worker(registry, answers, decides)
        assert worker.directory.first(lambda: FIRST, SECONDS).partitions
        worker.directory.start()
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.directory.close()
    registry.close()
    for worker in made:
        worker.directory.join()


def test_the_first_worker_founds_and_all_read_the_same(
    registry: CutOff, answers: dict[str, bytes]
) -> None:
    one, two = (Worker(registry, answers, decides=True).directory for _ in range(2))
    other = found(ADDRESSES, [[name(slot, start=9)] for slot in range(3)])
    assert one.first(lambda: FIRST, SECONDS) == FIRST == two.first(lambda: other, SECONDS)
    reader = Worker(registry, answers, decides=False).directory
    assert reader.first(lambda: other, SECONDS) == FIRST


def test_a_reader_waits_for_the_record(registry: CutOff, answers: dict[str, bytes]) -> None:
    reader = Worker(registry, answers, decides=False).directory
    with pytest.raises(RoundTimeoutError, match="no worker has made tables with backups"):
        reader.first(lambda: FIRST, 0.1)


def test_a_dead_primary_is_replaced_once_and_all_follow(
    start: Start, answers: dict[str, bytes]
) -> None:
    workers = [start(), start(), start(decides=False)]
    del answers["a:1"]
    for worker in workers:
        worker.tell("failed", 0, 1)
    spare = Seat(2, 0, name(2))
    for worker in workers:
        wait_until(lambda worker=worker: worker.entry(0).term > 1, SECONDS)
        assert worker.entry(0) == Entry(2, Seat(1, 0, name(1)), spare, is_filling=True)
        assert worker.entry(1).term == worker.entry(2).term == 1


def test_a_spare_becomes_the_backup_when_it_is_full(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    answers["a:1"] = name(0, start=1)
    answers.pop("c:1")
    worker.tell("lost", 0, 1)
    spare = Seat(0, 0, name(0, start=1))
    wait_until(lambda: worker.entry(0).backup == spare, SECONDS)
    worker.tell("filled", 0, 2, spare.incarnation)
    wait_until(lambda: worker.entry(0).term == 3, SECONDS)
    assert worker.entry(0) == Entry(3, Seat(1, 0, name(1)), spare) and not worker.lost


def test_a_primary_that_answers_is_not_replaced(start: Start, answers: dict[str, bytes]) -> None:
    worker = start()
    worker.late["a:1"] = 2.0
    worker.tell("failed", 0, 1)
    wait_until(lambda: worker.has_decided, SECONDS)
    assert worker.entry(0).term == 1
    answers["a:1"] = name(0, start=1)  # another process at its address
    worker.tell("failed", 0, 1)
    wait_until(lambda: worker.entry(0).term == 2, SECONDS)


def test_a_primary_has_its_time_though_it_was_too_late_as_a_backup(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    worker.late["b:1"] = 2.0  # the backup of partition 0, and the primary of partition 1
    del answers["a:1"]
    worker.tell_all(("failed", 0), ("failed", 1))
    wait_until(lambda: worker.has_decided, SECONDS)
    assert worker.entry(0).term == worker.entry(1).term == 1


def test_what_one_death_costs_is_decided_in_one_change(
    start: Start, answers: dict[str, bytes]
) -> None:
    """The record is on a disk, and a dead reducer may have had many partitions."""
    worker = start()
    del answers["a:1"]  # the primary of partition 0, and the backup of partition 2
    worker.tell_all(("failed", 0), ("alone", 2, name(0)))
    wait_until(lambda: worker.has_decided, SECONDS)
    assert [worker.entry(number).term for number in range(3)] == [2, 1, 2]
    assert len(worker.documents) == 1


def test_a_backup_that_does_not_answer_becomes_no_primary(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    del answers["a:1"], answers["b:1"]
    worker.tell("failed", 0, 1)
    wait_until(lambda: worker.has_decided, SECONDS)
    assert worker.entry(0).term == 1
    answers["b:1"] = name(1)
    worker.tell("failed", 0, 1)
    wait_until(lambda: worker.entry(0).primary == Seat(1, 0, name(1)), SECONDS)


def test_a_primary_that_does_not_answer_is_not_left_alone_with_a_partition(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    del answers["b:1"]
    worker.tell("alone", 1, 1, name(2))
    wait_until(lambda: worker.has_decided, SECONDS)
    assert worker.entry(1).term == 1
    worker.tell("failed", 1, 1)
    wait_until(lambda: worker.entry(1).primary == Seat(2, 0, name(2)), SECONDS)


def test_a_partition_is_lost_when_its_primary_and_its_backup_were_started_again(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    answers["a:1"] = name(0, start=1)
    answers["b:1"] = name(1, start=1)
    worker.tell("lost", 0, 1)
    wait_until(lambda: worker.lost == [0], SECONDS)
    assert worker.entry(0).term == 1


def test_a_lost_backup_is_left_and_another_spare_is_looked_for(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker = start()
    del answers["a:1"], answers["c:1"]
    worker.tell("alone", 1, 1, name(2))
    wait_until(lambda: worker.entry(1) == Entry(2, Seat(1, 0, name(1)), None), SECONDS)
    answers["c:1"] = name(2, start=3)
    wait_until(lambda: worker.entry(1).backup is not None, SECONDS)
    assert worker.entry(1) == Entry(3, Seat(1, 0, name(1)), Seat(2, 0, name(2, 3)), is_filling=True)


def test_a_partition_without_a_full_backup_is_lost_when_its_primary_was_started_again(
    start: Start, answers: dict[str, bytes]
) -> None:
    worker, reader = start(), start(decides=False)
    del answers["a:1"], answers["c:1"]
    worker.tell("alone", 1, 1, name(2))
    wait_until(lambda: worker.entry(1).term == 2 and reader.entry(1).term == 2, SECONDS)
    worker.tell("failed", 1, 2)
    for each in (worker, reader):
        each.tell("lost", 1, 2)
        wait_until(lambda each=each: each.lost, SECONDS)
        assert set(each.lost) == {1} and each.entry(1).term == 2


def test_nothing_is_decided_without_the_registry_and_all_of_it_afterwards(
    start: Start, registry: CutOff, answers: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    worker = start()
    registry.is_down = True
    del answers["c:1"]
    worker.tell("failed", 2, 1)
    wait_until(lambda: "no partition of tables can move now" in caplog.text, SECONDS)
    assert worker.entry(2).term == 1
    registry.is_down = False
    wait_until(lambda: worker.entry(2).term == 2, SECONDS)
