"""Connecting to lanes of other reducers: every Dial is answered once, and a failure leaves nothing.

The lanes, listeners and sockets are real; tests/net/test_links.py has the daemons.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
import uvloop

from reducer.core.members.session import SessionState
from reducer.core.surface import events
from reducer.core.surface.events import Dial
from reducer.server.data.connection import Connection
from reducer.server.gates import dialer
from reducer.server.gates.dialer import AT_ONCE, AT_ONCE_OF_JOB, STEP_SECONDS, WAITING_OF_JOB
from reducer.server.gates.proofs import Begin, KeyProof, OpenProof, Proof
from reducer.wire import messages
from reducer.wire.header import pack_header
from tests.support.bare_lane import KERNELS, contribution
from tests.support.dialing import (
    BYE,
    FOLLOWS,
    DialingLane,
    Listener,
    linked_by_hand,
    on_a_lane,
    receive,
    receive_message,
    until,
)
from tests.support.wait import AT_ONCE as NOW

KEY = bytes(range(32))


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# --- a link that stands -----------------------------------------------------------------------


def test_frames_go_in_both_directions() -> None:
    async def run(lane: DialingLane) -> None:
        async with linked_by_hand(lane) as (peer, far):
            assert peer.state == SessionState.LINKED and peer.permit is None
            assert lane.shell.connections[peer.id].turn.job == "job"
            far.sendall(FOLLOWS)
            await until(lambda: lane.follows(peer.link))
            far.sendall(BYE)
            assert "sent BYE on a link" in (await receive_message(far, messages.Error)).message
            assert peer.state == SessionState.CLOSED

    on_a_lane(OpenProof(), run)


def test_a_chunk_from_the_other_lane_reaches_the_core() -> None:
    """A backup sends none, and the core says so."""

    async def run(lane: DialingLane) -> None:
        async with linked_by_hand(lane) as (_, far):
            payload = bytes(4_096)
            header = contribution(0, 0, len(payload), 1, payload)
            far.sendall(pack_header(header, KERNELS.crc32c) + payload)
            error = await receive_message(far, messages.Error)
            assert "sent a contribution in state LINKED" in error.message

    on_a_lane(OpenProof(), run)


def test_the_end_of_the_other_lane_is_the_end_of_the_session() -> None:
    async def run(lane: DialingLane) -> None:
        async with linked_by_hand(lane) as (_, far):
            far.close()
            await until(lambda: not lane.links and not lane.shell.connections)
        assert not lane.failures

    on_a_lane(OpenProof(), run)


def test_a_link_that_nobody_waits_for_is_closed() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            lane.give_up(link)
            with await listener.accept() as far:
                assert len(await receive(far, 100)) == 16  # the preface, and then the end
        await until(lambda: not lane.links)

    on_a_lane(OpenProof(), run)


def test_a_lane_that_shuts_down_closes_its_links() -> None:
    async def run(lane: DialingLane) -> None:
        async with linked_by_hand(lane) as (peer, far):
            lane.shell.feed(events.Shutdown("the test"))
            assert peer.state == SessionState.CLOSED
            assert await receive(far, 1) == b""

    on_a_lane(OpenProof(), run)


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("a..b:4000", "no address is found for 'a..b'"),
        ("127.0.0.1:0", "port '0' is not a number from 1 to 65535"),
        ("::1:4000", "an IPv6 address goes in brackets"),
    ],
)
def test_an_address_that_is_none(address: str, why: str) -> None:
    async def run(lane: DialingLane) -> None:
        reason = await lane.fails(address, 5)
        assert reason.startswith(f"{address}, lane 5: ") and why in reason

    on_a_lane(OpenProof(), run)


def test_a_port_that_nobody_listens_on() -> None:
    async def run(lane: DialingLane) -> None:
        address = closed_port()
        assert await lane.fails(address) == f"{address}, lane 0: connection refused"

    on_a_lane(OpenProof(), run)


def test_a_connection_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may choose the port that a dead reducer has left: TCP then connects to itself."""
    address = closed_port()

    def bound(family: int, congestion: str) -> socket.socket:
        sock = to_connect(family, congestion)
        sock.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        return sock

    to_connect = dialer.to_connect
    monkeypatch.setattr(dialer, "to_connect", bound)

    async def run(lane: DialingLane) -> None:
        assert "connection refused" in await lane.fails(address)

    on_a_lane(OpenProof(), run)


def full_listener(undo: ExitStack) -> str:
    """A port whose backlog is full: the kernel answers no further connection."""
    server = undo.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    undo.enter_context(socket.create_connection(server.getsockname()))
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_host_that_does_not_answer() -> None:
    async def run(lane: DialingLane) -> None:
        with ExitStack() as undo:
            start = time.monotonic()
            reason = await lane.fails(full_listener(undo))
            assert STEP_SECONDS <= time.monotonic() - start < STEP_SECONDS + NOW
            assert f"no connection in {STEP_SECONDS:.1f} s" in reason

    on_a_lane(OpenProof(), run)


def test_a_lane_that_proves_nothing() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            start = time.monotonic()
            reason = await lane.fails(listener.address)
            assert STEP_SECONDS <= time.monotonic() - start < STEP_SECONDS + NOW
            assert f"it did not prove itself in {STEP_SECONDS:g} s" in reason

    on_a_lane(KeyProof(KEY), run)


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "STEP_SECONDS", 0.05)

    async def never(*arguments: object, **named: object) -> None:
        await asyncio.Event().wait()

    async def run(lane: DialingLane) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.getaddrinfo = never
        assert "its name was not resolved in 0.05 s" in await lane.fails("reducer-0")

    class Loop(uvloop.Loop):
        """A loop whose methods can be replaced."""

    monkeypatch.setattr(uvloop, "new_event_loop", Loop)
    on_a_lane(OpenProof(), run)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it closed the connection before it proved its key"),
        (b"ORS", "it closed the connection before it proved its key"),
        (b"ORSP" + bytes(12), "it is in another mode"),
        (b"HTTP/1.1", "begins with b'HTTP'"),
        (b"ORSA" + bytes(84), "could not prove that it has the key"),
    ],
)
def test_an_answer_that_proves_nothing(answer: bytes, why: str) -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            with await listener.accept() as far:
                await receive(far, 184)
                far.sendall(answer)
                far.shutdown(socket.SHUT_WR)
                assert await receive(far, 1) == b"", "the proof went to a lane without the key"
            await until(lambda: lane.failures)
        assert why in lane.failures[link]

    on_a_lane(KeyProof(KEY), run)


class Broken(Proof):
    """A proof with a bug."""

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        raise RuntimeError("injected")


class Unmade(Proof):
    """A proof after which the connection cannot be made."""

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        class Protocol(asyncio.BufferedProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                raise MemoryError("injected")

        return lambda connection: Protocol()


class Unmakable(Proof):
    """A proof after which not even a protocol can be made."""

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        def fail(connection: Connection) -> asyncio.BaseProtocol:
            raise MemoryError("injected")

        return fail


@pytest.mark.parametrize("proof", [Broken, Unmade, Unmakable])
def test_a_bug_ends_its_attempt_alone(proof: type[Proof]) -> None:
    async def run(lane: DialingLane) -> None:
        told: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context))
        with Listener() as listener:
            assert "internal error" in await lane.fails(listener.address)
            with await listener.accept() as far:
                assert await receive(far, 1) == b""
        await until(lambda: told)
        assert not lane.shell.turns._by_job, "the connection still takes part in the turns"

    on_a_lane(proof(), run)


# --- many at once -------------------------------------------------------------------------------


@pytest.mark.parametrize(("jobs", "bound"), [(1, AT_ONCE_OF_JOB), (50, AT_ONCE)])
def test_a_hundred_at_once_stay_below_the_bound(jobs: int, bound: int) -> None:
    """The other lane lets as many connections stand as come, and then ends them."""

    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            for number in range(jobs):
                lane.dial(listener.address, job=f"job {number}", times=100 // jobs)
            assert not lane.failures
            for left in range(100, 0, -bound):
                standing = [await listener.accept() for _ in range(min(bound, left))]
                with pytest.raises(BlockingIOError):
                    listener.socket.accept()
                assert len(lane.dialer) == len(standing)
                for far in standing:
                    far.close()
            await until(lambda: len(lane.failures) == 100)
        assert not len(lane.dialer) and not lane.dialer._of_job

    on_a_lane(KeyProof(KEY), run)


def test_no_more_than_the_bound_are_in_flight() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            lane.dial(listener.address, times=100)
            await until(lambda: len(lane.dialer) == AT_ONCE_OF_JOB)
            for number in range(100):
                lane.dial(listener.address, job=f"job {number}")
            await until(lambda: len(lane.dialer) == AT_ONCE)
            await asyncio.sleep(0)
            assert len(lane.dialer) == AT_ONCE and not lane.failures

    on_a_lane(KeyProof(KEY), run)


def test_a_job_does_not_wait_for_the_addresses_of_another() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as dead, Listener() as listener, ExitStack() as undo:
            lane.dial(full_listener(undo), job="stuck", times=50)
            (link,) = lane.dial(listener.address, job="lively")
            with await listener.accept():
                await until(lambda: link in lane.links)
            assert not lane.failures and dead.address

    on_a_lane(OpenProof(), run)


def test_a_job_that_asks_for_too_many_is_told() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            lane.dial(listener.address, times=WAITING_OF_JOB + 10)
            assert not lane.failures, "answered before all outputs were carried out"
            await until(lambda: len(lane.failures) == 10)
            assert f"{WAITING_OF_JOB} other attempts" in next(iter(lane.failures.values()))

    on_a_lane(KeyProof(KEY), run)


# --- several addresses --------------------------------------------------------------------------


def as_found(address: str) -> dialer.Address:
    host, _, port = address.rpartition(":")
    return socket.AF_INET, (host, int(port))


def test_the_next_address_of_a_name_is_tried() -> None:
    async def run() -> None:
        with Listener() as listener, ExitStack() as undo:
            found = [as_found(full_listener(undo)), as_found(closed_port())]
            start = time.monotonic()
            sock = await dialer.reach([*found, as_found(listener.address)], "")
            with sock, await listener.accept():
                assert time.monotonic() - start < STEP_SECONDS
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            with pytest.raises(dialer.DialError, match=r"no connection in 1\.0 s, then .* refused"):
                await dialer.reach(found, "")

    uvloop.run(run())


def test_the_congestion_control_of_the_daemon_is_used() -> None:
    async def run() -> None:
        with Listener() as listener:
            with await dialer.reach([as_found(listener.address)], "reno") as sock:
                used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert used.rstrip(b"\0") == b"reno"
            with pytest.raises(dialer.DialError, match="no such file"):
                await dialer.reach([as_found(listener.address)], "no such one")

    uvloop.run(run())


# --- the end of the lane ------------------------------------------------------------------------


def test_the_end_of_the_lane_answers_all() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            links = lane.dial(listener.address, times=20)
            await until(lambda: len(lane.dialer) == AT_ONCE_OF_JOB)
            with await listener.accept() as far:
                await lane.dialer.close()
                assert sorted(lane.failures) == links
                assert "this reducer is ending" in lane.failures[links[-1]]
                await receive(far, 1_000)  # to the end
            lane.dial(listener.address)
            assert not lane.dialer._is_due

    on_a_lane(KeyProof(KEY), run)


@pytest.mark.parametrize("step", range(12))
def test_the_end_of_the_lane_at_any_moment(step: int) -> None:
    """Between two passes of the loop, also while the connection is being made."""

    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            for _ in range(step):
                await asyncio.sleep(0)
            await lane.dialer.close()
            stands = [peer.state == SessionState.LINKED for peer in lane.links.values()]
            assert stands == ([] if link in lane.failures else [True])

    on_a_lane(OpenProof(), run)


def test_an_attempt_whose_task_is_lost_is_answered() -> None:
    async def run(lane: DialingLane) -> None:
        with Listener() as listener:
            (link,) = lane.dial(listener.address)
            await until(lambda: len(lane.dialer))
            lane.dialer._attempts[link].until = 0.0
            await until(lambda: link in lane.failures)
            assert f"no answer in {dialer.LOST_SECONDS:g} s" in lane.failures[link]

    on_a_lane(KeyProof(KEY), run)
