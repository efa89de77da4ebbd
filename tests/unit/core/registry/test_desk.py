"""The registry of a lane without sockets: who may call, answers, watches, and the file's laws."""

from __future__ import annotations

from typing import Any

import pytest

from reducer.core.members.asking import SILENCE
from reducer.core.registry import desk, watches
from reducer.core.surface import events
from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.registry import limits
from reducer.registry.records import Contents, Document
from reducer.wire import messages
from reducer.wire.codes import MAX_CONTROL_BYTES, ErrorCode, MessageKind
from reducer.wire.messages import RegistryCall, RegistryRecord
from tests.support.frames import control, heartbeat
from tests.support.simlane import SimLane

BOOT = bytes(range(16))
STORAGE = bytes(range(16, 32))


def lane_with(documents: dict[tuple[str, str], Document] | None = None, **more: Any) -> SimLane:
    return SimLane(
        incarnation=BOOT, registry_contents=Contents(STORAGE, 0, documents or {}), **more
    )


class Client:
    """One connection to the registry, which reads its answers by number."""

    def __init__(self, lane: SimLane, job: str = "job", permit: Permit | None = None) -> None:
        self.lane = lane
        self.session = lane.connect()
        if permit is not None:
            lane.core._roster.sessions[self.session.number].permit = permit
        self._number = 0
        self._parts: dict[int, list[RegistryRecord]] = {}
        self.error: messages.Error | None = None
        self.opening = self.call("open", job=job)

    def start(self, call: str, **fields: Any) -> int:
        self._number += 1
        self.session.send(control(RegistryCall(call, **fields), key=self._number))
        return self._number

    def parts(self, number: int) -> list[RegistryRecord]:
        """What has come for a call so far."""
        for frame in self.session.read():
            assert frame.payload is not None
            if frame.header.kind == MessageKind.ERROR:
                self.error = messages.decode(messages.Error, frame.payload)
                continue
            assert frame.header.kind == MessageKind.RECORD
            assert len(frame.payload) <= MAX_CONTROL_BYTES
            answer = messages.decode(RegistryRecord, frame.payload)
            self._parts.setdefault(frame.header.key, []).append(answer)
        return self._parts.get(number, [])

    def call(self, call: str, **fields: Any) -> RegistryRecord | None:
        found = self.parts(self.start(call, **fields))
        return found[0] if found else None

    def get(self, name: str = "view", **fields: Any) -> RegistryRecord:
        found = self.call("get", name=name, **fields)
        assert found is not None
        return found

    def watch(self, known: RegistryRecord, milliseconds: int = 10_000, name: str = "view") -> int:
        return self.start(
            "get", name=name, milliseconds=milliseconds, boot=BOOT, revision=known.revision
        )

    def lease(self, holder: str = "a", value: bytes = b"", milliseconds: int = 5_000) -> None:
        found = self.call(
            "lease", name="view", holder=holder, value=value, milliseconds=milliseconds
        )
        assert found is not None and found.code == 0, found


def end_write(lane: SimLane, error: str = "") -> None:
    lane.feed(events.Stored(error))


def test_without_a_registry_the_error_says_what_to_start() -> None:
    client = Client(SimLane())
    assert client.error is not None and client.error.code == ErrorCode.UNAVAILABLE
    assert "--registry FILE" in client.error.message and client.session.closed


def test_only_lane_0_has_the_registry() -> None:
    client = Client(SimLane(lane=3, lanes=4))
    assert client.error is not None and client.error.code == ErrorCode.UNAVAILABLE
    assert "lane 0" in client.error.message


def test_a_call_before_open_and_a_second_open_are_refused() -> None:
    lane = lane_with()
    session = lane.connect()
    session.send(control(RegistryCall("get", name="view"), key=1))
    assert session.closed is not None and "get in state NEW" in session.closed
    client = Client(lane)
    client.call("open", job="other")
    assert client.error is not None and client.error.code == ErrorCode.PROTOCOL


def test_the_connection_of_a_run_cannot_call_the_registry() -> None:
    lane = lane_with()
    session = lane.connect()
    session.send(control(messages.Hello("job", 0, 1, bytes(16), 0, 1, "run", ((0, 4_096),))))
    session.send(control(RegistryCall("open", job="job"), key=1))
    assert session.closed is not None and "a connection of its own" in session.closed
    client = Client(lane)
    client.session.send(control(messages.Hello("job", 0, 1, bytes(16), 0, 1, "r", ((0, 4_096),))))
    assert client.session.closed is not None


@pytest.mark.parametrize("rank", [ANY_RANK, 3])
def test_a_proof_admits_only_to_the_records_of_its_jobs(rank: int) -> None:
    lane = lane_with({("mine", "view"): Document(1, b"x"), ("other", "view"): Document(1, b"y")})
    permit = Permit("key", (("mine", rank),))
    assert Client(lane, "mine", permit).get().value == b"x"
    stranger = Client(lane, "other", permit)
    assert stranger.error is not None and stranger.error.code == ErrorCode.AUTHENTICATION
    assert stranger.session.closed


def test_jobs_do_not_see_each_other() -> None:
    lane = lane_with()
    one, two = Client(lane, "one"), Client(lane, "two")
    one.lease("a", b"mine")
    assert two.get().leases == ()
    number = two.start("cas", name="view", version=0, value=b"two")
    end_write(lane)
    assert two.parts(number)[0].done
    assert one.get().version == 0


def test_a_document_is_shown_only_when_the_file_has_it() -> None:
    lane = lane_with()
    client, watcher, reader = Client(lane), Client(lane), Client(lane)
    watching = watcher.watch(watcher.get())
    number = client.start("cas", name="view", version=0, value=b"new", token=bytes(16))
    (store,) = lane.stores
    assert store.documents == ((("job", "view"), Document(1, b"new", (bytes(16),))),)
    assert not client.parts(number) and not watcher.parts(watching)
    assert reader.get().version == 0
    end_write(lane)
    (answer,) = client.parts(number)
    assert (answer.done, answer.version, answer.value) == (True, 1, b"new")
    assert (answer.incarnation, answer.boot) == (STORAGE, BOOT)
    (seen,) = watcher.parts(watching)
    assert (seen.version, seen.value) == (1, b"new") and reader.get().version == 1


def test_a_failed_write_changes_nothing_and_says_why() -> None:
    lane = lane_with({("job", "view"): Document(1, b"old")})
    client = Client(lane)
    number = client.start("cas", name="view", version=1, value=b"new")
    behind = client.start("cas", name="view", version=1, value=b"next")
    end_write(lane, "No space left on device")
    (answer,) = client.parts(number)
    assert answer.code == ErrorCode.UNAVAILABLE and "No space left on device" in answer.message
    assert (client.get().version, client.get().value) == (1, b"old")
    end_write(lane)  # of the call that waited
    assert client.parts(behind)[0].done and client.get().value == b"next"
    assert "No space left on device" in lane.logs[-1]


def test_calls_that_wait_for_a_write_share_the_next_one() -> None:
    lane = lane_with()
    client = Client(lane)
    first = client.start("cas", name="first", version=0, value=b"1")
    names = [f"n{number}" for number in range(5)]
    numbers = [client.start("cas", name=name, version=0, value=b"x") for name in names]
    rival = client.start("cas", name="n0", version=0, value=b"too late")
    assert len(lane.stores) == 1
    end_write(lane)
    assert len(lane.stores) == 2 and client.parts(first)[0].done
    assert len(lane.stores[1].documents) == 6
    end_write(lane)
    assert all(client.parts(number)[0].done for number in numbers)
    (lost,) = client.parts(rival)
    assert not lost.done and (lost.version, lost.value) == (1, b"x")
    assert len(lane.stores) == 2


def test_a_call_that_changes_nothing_needs_no_write() -> None:
    lane = lane_with({("job", "view"): Document(3, b"x")})
    answer = Client(lane).call("cas", name="view", version=2, value=b"y")
    assert answer is not None and not answer.done and answer.version == 3 and not lane.stores


def test_a_repeated_call_counts_once() -> None:
    lane = lane_with()
    one, two = Client(lane), Client(lane)
    token, other = bytes(16), b"o" * 16
    one.start("cas", name="view", version=0, value=b"x", token=token)
    again = two.start("cas", name="view", version=0, value=b"x", token=token)
    end_write(lane)  # the call before the connection was lost
    (answer,) = two.parts(again)  # the same call on the next connection
    assert answer.done and answer.version == 1
    two.start("cas", name="view", version=1, value=b"y", token=other)
    end_write(lane)
    late = two.call("cas", name="view", version=0, value=b"x", token=token)
    assert late is not None and late.done and (late.version, late.value) == (2, b"y")
    rival = two.call("cas", name="view", version=0, value=b"x", token=b"r" * 16)
    assert rival is not None and not rival.done


def test_a_watch_ends_at_its_time() -> None:
    lane = lane_with()
    client = Client(lane)
    number = client.watch(client.get(), 1_000)
    lane.tick(0.9)
    assert not client.parts(number)
    lane.tick(0.2)
    assert client.parts(number)[0].version == 0


def test_no_watch_is_longer_than_the_limit() -> None:
    lane = lane_with()
    client = Client(lane)
    number = client.watch(client.get(), 3_600_000)
    lane.tick(limits.MOST_WAIT_SECONDS - 0.1)
    assert not client.parts(number)
    lane.tick(0.2)
    assert client.parts(number)


def test_a_watch_that_knows_an_older_revision_or_start_returns_at_once() -> None:
    lane = lane_with()
    client = Client(lane)
    before = client.get()
    client.lease("a", b"1")
    (answer,) = client.parts(client.watch(before))
    assert answer.whole and answer.leases == (("a", b"1"),)
    client.lease("b", b"2")
    (answer,) = client.parts(client.watch(answer))
    assert not answer.whole and answer.leases == (("b", b"2"),)
    other = client.get(milliseconds=10_000, boot=b"o" * 16, revision=answer.revision)
    assert other.whole and other.leases == (("a", b"1"), ("b", b"2"))


def test_watches_of_a_busy_record_rest() -> None:
    lane = lane_with()
    client, watcher = Client(lane), Client(lane)
    lane.tick()
    known = watcher.get()
    for change in ("a", "an answer"):
        number = watcher.watch(known)
        client.lease(change)
        (known,) = watcher.parts(number)
    number = watcher.watch(known)
    client.lease("b")
    client.lease("c")
    assert not watcher.parts(number)
    late = Client(lane)
    knows_all = late.watch(late.get())
    lane.tick(watches.REST_SECONDS)
    assert not late.parts(knows_all)
    (answer,) = watcher.parts(number)
    assert {holder for holder, _ in answer.leases} == {"b", "c"}


def test_a_crowd_of_watchers_wakes_in_parts() -> None:
    lane = lane_with()
    crowd = [Client(lane) for _ in range(40)]
    each = 10  # below the limit of a connection
    assert len(crowd) * each > watches.MOST_AT_ONCE
    numbers = [(c, c.watch(known)) for c in crowd for known in [c.get()] for _ in range(each)]
    crowd[0].lease("a")
    woken = sum(bool(client.parts(number)) for client, number in numbers)
    assert woken == watches.MOST_AT_ONCE
    lane.tick()
    assert all(client.parts(number) for client, number in numbers)


def test_leases_lapse_and_wake_watchers() -> None:
    lane = lane_with()
    holder, watcher = Client(lane), Client(lane)
    holder.lease("a", b"1", 1_000)
    lane.tick(0.9)
    holder.lease("a", b"1", 1_000)
    number = watcher.watch(watcher.get())
    holder.session.disconnect()
    lane.tick(0.9)
    assert not watcher.parts(number)
    lane.tick(0.2)
    (answer,) = watcher.parts(number)
    assert answer.gone == ("a",) or answer.whole
    assert watcher.get().leases == ()


def test_time_in_which_the_lane_stood_still_ends_no_lease() -> None:
    lane = lane_with()
    client = Client(lane)
    lane.tick()
    client.lease("a", b"", 1_000)
    lane.stand_still(5.0)
    assert client.get().leases == (("a", b""),)
    lane.tick(1.1)
    assert client.get().leases == ()


def test_a_lease_ends_at_once() -> None:
    lane = lane_with()
    client = Client(lane)
    client.lease("a")
    client.lease("a", milliseconds=0)
    assert client.get().leases == ()


def test_a_large_record_comes_in_parts() -> None:
    lane = lane_with({("job", "view"): Document(1, bytes(limits.MAX_DOCUMENT_BYTES))})
    client = Client(lane)
    value = bytes(limits.MAX_LEASE_BYTES)
    for number in range(200):
        client.lease(f"holder {number}", value)
    parts = client.parts(client.start("get", name="view"))
    assert len(parts) > 10
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [part.whole for part in parts] == [True] + [False] * (len(parts) - 1)
    assert [len(part.value) for part in parts[:2]] == [limits.MAX_DOCUMENT_BYTES, 0]
    assert len({holder for part in parts for holder, _ in part.leases}) == 200


def test_many_small_leases_come_in_parts_and_go() -> None:
    lane = lane_with()
    client = Client(lane)
    for number in range(4_000):
        client.lease(f"{number}", milliseconds=1_000)
    parts = client.parts(client.start("get", name="view"))
    assert sum(len(part.leases) for part in parts) == 4_000
    client.lease("stays", milliseconds=60_000)
    known = client.get()
    watching = client.watch(parts[-1])
    assert client.parts(watching)[0].leases == (("stays", b""),)
    number = client.watch(known)
    lane.tick(1.2)
    assert sum(len(part.gone) for part in client.parts(number)) == 4_000


def test_what_is_above_a_limit_is_refused_and_the_connection_stays() -> None:
    lane = lane_with()
    client = Client(lane)
    refused = client.call("lease", name="view", holder="", milliseconds=1_000)
    assert refused is not None and refused.code == ErrorCode.QUOTA
    known = client.get()
    for _ in range(desk.MAX_WATCHES):
        assert not client.parts(client.watch(known))
    (full,) = client.parts(client.watch(known))
    assert full.code == ErrorCode.QUOTA and "wait, the limit" in full.message
    assert client.get().code == 0


def test_changes_that_wait_for_the_disk_are_bounded() -> None:
    lane = lane_with()
    clients = [Client(lane) for _ in range(8)]
    value = bytes(limits.MAX_DOCUMENT_BYTES)
    clients[0].start("cas", name="first", version=0, value=b"")  # whose write does not end
    for number in range(desk.MAX_SETS):
        assert not clients[0].call("cas", name=f"{number}", version=0, value=b"")
    full = clients[0].call("cas", name="more", version=0, value=b"")
    assert full is not None and full.code == ErrorCode.QUOTA
    answers = [
        client.call("cas", name="big", version=0, value=value)
        for client in clients[1:]
        for _ in range(desk.MAX_SETS)
    ]
    refused = [answer for answer in answers if answer is not None]
    assert refused and all("wait for the disk" in answer.message for answer in refused)
    other = Client(lane, "other")
    assert other.call("cas", name="big", version=0, value=value) is None
    end_write(lane)
    end_write(lane)
    assert other.get("big").version == 1 and clients[1].get("big").version == 1
    for version in range(1, limits.MAX_BYTES_OF_JOB // len(value) + 2):  # nothing waits
        number = other.start("cas", name="big", version=version, value=value)
        end_write(lane)
        assert other.parts(number)[0].version == version + 1


def test_long_frames_need_an_open_registry() -> None:
    lane = lane_with()
    session = lane.connect()
    session.send(control(RegistryCall("cas", name="view", value=bytes(8_000)), key=1))
    assert session.closed is not None and "before the welcome" in session.closed


def test_a_client_that_does_not_read_is_cut_off() -> None:
    lane = lane_with({("job", "view"): Document(1, bytes(limits.MAX_DOCUMENT_BYTES))})
    client = Client(lane)
    _, room = lane.core.unread_room(client.session.number)
    assert limits.MAX_LEASES_BYTES < room < 2 * limits.MAX_LEASES_BYTES
    for _ in range(30):
        client.start("get", name="view")
    assert len(client.session.outbox) > room
    client.start("cas", name="view", version=1, value=bytes(8_000))
    assert client.session.closed is not None and "wait for it" in client.session.closed


def test_connections_of_a_job_are_limited_and_counted_apart_from_its_workers() -> None:
    lane = lane_with(descriptors=400)
    clients = [Client(lane) for _ in range(200)]
    assert all(client.error is None for client in clients)
    over = Client(lane)
    assert over.error is not None and over.error.code == ErrorCode.QUOTA
    session = lane.connect()
    session.send(control(messages.Hello("job", 0, 1, bytes(16), 0, 1, "run", ((0, 4_096),))))
    assert [frame.header.kind for frame in session.read()] == [MessageKind.WELCOME]
    over.session.disconnect()
    clients[0].session.disconnect()
    assert Client(lane).error is None


def test_a_client_that_calls_nothing_is_closed() -> None:
    lane = lane_with()
    client, beating = Client(lane), Client(lane)
    for _ in range(int(SILENCE)):
        lane.tick(1.1)
        beating.session.send(heartbeat())
    assert client.session.closed is not None and "called nothing" in client.session.closed
    assert beating.session.closed is None
    assert lane.core.idle


def test_a_session_that_ends_leaves_no_watch() -> None:
    lane = lane_with()
    client = Client(lane)
    client.watch(client.get())
    client.session.disconnect()
    desk_of_lane = lane.core._desk
    assert not desk_of_lane._watches._of_session and not desk_of_lane._watches._of_key
    Client(lane).lease("a")
    lane.tick(30)


def test_a_lane_that_ends_closes_its_clients_without_a_line_in_the_log() -> None:
    lane = lane_with()
    client = Client(lane)
    client.watch(client.get())
    lines = len(lane.logs)
    lane.feed(events.Shutdown("SIGTERM"))
    assert client.session.closed is not None and len(lane.logs) == lines
    assert not client.parts(0) and client.error is None


def test_the_number_of_records_is_shown() -> None:
    lane = lane_with({("job", "view"): Document(1, b"")})
    lane.tick()
    Client(lane).lease("a")
    assert lane.snapshot()["registry_records"] == 1
    assert SimLane().snapshot()["registry_records"] == 0
