"""Jobs take turns at a lane."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reducer.core.surface.permit import ANY_RANK, Permit
from reducer.server.data.buffers import BufferPool
from reducer.server.data.connection import (
    HEARTBEAT_PART,
    RANKS_OF_PART,
    READ_BYTES,
    READ_SECONDS,
)
from reducer.server.data.leftovers import AT_ONCE, MOST_BYTES
from reducer.server.data.shell import LaneShell
from reducer.server.data.turns import MOST_TURNS, PASS_SECONDS, SECONDS, SHARED_SECONDS, Turns
from reducer.server.gates.tls_link import TlsLink
from reducer.wire import messages
from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.header import HEADER_SIZE, Header, pack_header
from tests.support.bare_lane import (
    BUDGET,
    KERNELS,
    Sink,
    arrive,
    bare_lane,
    contribution,
    hello,
    receive,
)
from tests.support.certs import Authority, shake_hands
from tests.support.frames import heartbeat

CHUNK = 64 << 10


class Socket(Sink):
    """A transport that records whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Held(Socket):
    """One connection of a job on a lane; closing it looks at `socket`."""

    socket: socket.socket  # type: ignore[name-defined]

    def can_write_eof(self) -> bool:
        return False

    def abort(self) -> None:
        self.reads = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.socket

    def __init__(self, shell: LaneShell, job: str, rank: int, world: int) -> None:
        super().__init__()
        self.connection = shell.connection()
        self.connection.connection_made(self)
        header, payload = hello(rank, world, CHUNK, job)
        receive(self.connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))


async def until(predicate: Callable[[], bool]) -> None:
    """Run the loop until the predicate is true."""
    for _ in range(100 * MOST_TURNS):
        await asyncio.sleep(0)
        if predicate():
            return
    raise AssertionError("it never is")


async def rest(shell: LaneShell) -> None:
    """Wait until no turn is over because of the joins, as on a slow machine."""
    await until(lambda: not shell.turns._over)


async def flood(hostile: Held) -> int:
    """Send heartbeats of unknown keys until the turn is over."""
    frame = memoryview(heartbeat(*((number, 1) for number in range(4_000))))
    for count in range(1_000):
        receive(hostile.connection, frame)
        if not hostile.reads:
            return count
    raise AssertionError("it was never held")


def test_a_job_that_has_had_its_turn_lets_the_others_go_first() -> None:
    async def turn() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = [Held(shell, "hostile", rank, 2) for rank in range(2)]
        calm = Held(shell, "calm", 0, 1)
        await rest(shell)
        await flood(hostile[0])
        assert len(hostile[1].connection.get_buffer(-1)) == 1  # the smallest possible read
        assert calm.reads and len(calm.connection.get_buffer(-1)) > 1
        await until(lambda: hostile[0].reads)
        await until(lambda: len(hostile[1].connection.get_buffer(-1)) > 1)
        assert shell.turns.count  # more than one on a slow machine

    asyncio.run(turn())


def test_each_flush_gives_a_job_its_part_of_a_pass() -> None:
    """Regression: a job alone on its lane lost its turn every millisecond of work."""

    async def spent() -> tuple[float, float]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        held = Held(shell, "job", 0, 1)
        await rest(shell)
        turn = held.connection.turn
        turn.spent = SECONDS / 2
        receive(held.connection, memoryview(pack_header(Header(MessageKind.STATS), KERNELS.crc32c)))
        before = turn.spent
        await asyncio.sleep(0)
        return before, turn.spent

    before, after = asyncio.run(spent())
    assert before > SECONDS / 2 and after < before


def test_a_job_that_says_no_hello_lets_the_others_join() -> None:
    """Regression: with one shared turn a crowd of one job delayed another's HELLO by up to 4 s."""

    async def turn() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        slow, other = (
            shell.connection(Permit("key", ((job, ANY_RANK),))) for job in ("slow", "other")
        )
        for connection in (slow, other):
            connection.connection_made(Socket())
        shell.turns.charge(slow.turn, 2 * SECONDS)
        assert len(slow.get_buffer(-1)) == 1
        assert len(other.get_buffer(-1)) > 1
        before = other.turn
        header, payload = hello(0, 1, CHUNK, "other")
        receive(other, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        assert other.turn is before and before.members == 1

    asyncio.run(turn())


def test_a_frame_whose_end_comes_too_late_waits_for_the_next_turn() -> None:
    """Regression: hundreds of frames, each short of a byte, were handled in one pass."""

    async def turn() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        late = Held(shell, "job", 0, 1)
        await until(lambda: late.reads)
        question = pack_header(Header(MessageKind.STATS), KERNELS.crc32c)
        receive(late.connection, memoryview(question)[:-1])
        shell.turns.charge(late.connection.turn, 2 * SECONDS)
        late.connection.get_buffer(-1)[0] = question[-1]
        before = late.taken
        late.connection.buffer_updated(1)
        shell._flush()
        assert late.taken == before and not late.reads
        await until(lambda: late.taken > before and late.reads)

    asyncio.run(turn())


@pytest.mark.parametrize(
    ("ranks", "most"), [(1, HEARTBEAT_PART), (2 * RANKS_OF_PART, HEARTBEAT_PART // 2)]
)
def test_a_long_heartbeat_is_taken_in_parts_between_which_the_turn_may_end(
    ranks: int, most: int
) -> None:
    """Regression: 4,096 new keys in a frame took 10 ms; 256 for 8,192 ranks 31 to 131 ms."""

    async def parts() -> list[bytes]:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        held = [Held(shell, "job", rank, ranks) for rank in range(ranks)]
        await rest(shell)
        connection, found = held[0].connection, []
        left = memoryview(frame)
        while left:
            room = connection._decoder.get_buffer()
            size = min(len(room), len(left))
            room[:size] = left[:size]
            left = left[size:]
            connection._decoder.received(size)
            while (part := connection._next_frame()) is not None:
                found.append(bytes(part.payload or b""))
        return found

    frame = heartbeat(*((number, 1) for number in range(4_000)))
    found = asyncio.run(parts())
    assert max(map(len, found)) == most
    assert b"".join(found) == frame[HEADER_SIZE:]


def test_who_joins_takes_of_the_turn_of_those_that_do() -> None:
    async def turn() -> float:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        newcomer = shell.connection()
        Held(shell, "job", 0, 2)
        return newcomer.turn.spent

    assert asyncio.run(turn()) > 0


def test_a_frame_behind_a_hello_is_read_when_the_turn_of_newcomers_is_over() -> None:
    """Nothing else comes from this worker, so no later event would make the lane read."""

    async def join() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        held = Held(shell, "job", 0, 2)
        await rest(shell)
        newcomer = shell.connection()
        socket = Socket()
        newcomer.connection_made(socket)
        newcomer.turn.spent = SECONDS - READ_SECONDS - 20e-6  # less time than the HELLO takes
        header, payload = hello(1, 2, CHUNK, "job")
        frames = pack_header(header, KERNELS.crc32c) + payload
        question = pack_header(Header(MessageKind.STATS), KERNELS.crc32c)
        answer = socket.taken
        receive(newcomer, memoryview(frames + question))
        await until(lambda: newcomer.turn is held.connection.turn)
        await until(lambda: newcomer._answer_end > answer)

    asyncio.run(join())


def test_a_connection_that_has_ended_keeps_no_buffer_for_what_it_began_to_send() -> None:
    """Regression: a rank that reconnected 200 times held 200 buffers until all were closed."""

    async def turn() -> int:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        pool = shell._pool
        held = Held(shell, "job", 0, 1)
        header = contribution(0, 0, 0, 1, bytes(CHUNK))
        receive(held.connection, memoryview(pack_header(header, KERNELS.crc32c) + b"x"))
        assert pool.out == 1
        held.connection.abort("another has come")
        return pool.out

    assert asyncio.run(turn()) == 0


def test_a_job_whose_run_still_forms_waits_too() -> None:
    async def turn() -> bool:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile, calm = Held(shell, "hostile", 1, 2), Held(shell, "calm", 0, 1)
        await rest(shell)
        await flood(hostile)
        return calm.reads

    assert asyncio.run(turn())


def test_tls_keeps_what_it_has_read_until_the_next_turn(tmp_path: Path) -> None:
    worker, lane, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())

    async def turn() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        transport, connection = Socket(), shell.connection()
        link = TlsLink(transport, lane, to_lane, to_worker, connection)
        header, payload = hello(0, 1, CHUNK)
        worker.write(pack_header(header, KERNELS.crc32c) + payload)
        link.begin()
        assert connection.bytes_in
        await until(lambda: transport.reads)
        frames = 100 * heartbeat((1, 1))
        for start in range(0, len(frames), 100):
            worker.write(frames[start : start + 100])
        connection.turn.spent = SECONDS - 1e-9
        connection.bytes_in = 0
        arrive(link, to_lane.read())
        assert connection.bytes_in < len(frames) and not transport.reads
        await until(lambda: connection.bytes_in == len(frames) and transport.reads)

    asyncio.run(turn())


class Line:
    """A connection that can be left unread for a while."""

    reads = True

    def hold(self) -> None:
        self.reads = False

    def resume(self) -> None:
        self.reads = True


def test_of_many_connections_few_go_on_at_a_time_and_more_if_they_leave_some_of_the_turn() -> None:
    async def turn() -> list[int]:
        turns, lines = Turns(), [Line() for _ in range(40)]
        job = turns.enter("job")
        turns.charge(job, SECONDS)
        for line in lines:
            turns.wait(job, line)
        reading = []
        for _ in range(6):
            await asyncio.sleep(0)
            reading.append(sum(line.reads for line in lines))
        return reading

    assert asyncio.run(turn()) == [1, 3, 7, 15, 31, 40]


def test_a_long_turn_costs_the_next_ones_up_to_a_number() -> None:
    async def turn(spent: float, *others: str) -> int:
        turns, line = Turns(), Line()
        job = turns.enter("job")
        for other in others:
            turns.enter(other)
        turns.charge(job, spent)
        turns.wait(job, line)
        for count in range(1_000):
            if line.reads:
                return count
            await asyncio.sleep(0)
        raise AssertionError("it never goes on")

    assert asyncio.run(turn(3.5 * SECONDS)) == 3
    assert asyncio.run(turn(3_600.0)) == MOST_TURNS - 1
    assert asyncio.run(turn(3_600.0, "another")) == (MOST_TURNS - 1) * SECONDS / SHARED_SECONDS


def test_a_job_that_takes_little_is_not_held_beside_one_that_takes_all_it_gets() -> None:
    """Regression: the job got 87 % of the turns that it got beside a copy of itself."""

    async def held(passes: int) -> bool:
        turns = Turns()
        little, all_it_gets = turns.enter("little"), turns.enter("all it gets")
        assert not turns.charge(little, 0.9 * SECONDS)
        for _ in range(passes):
            turns.charge(all_it_gets, SECONDS)
            await asyncio.sleep(0)
        return turns.charge(little, 0.9 * SECONDS)

    assert asyncio.run(held(3))
    assert not asyncio.run(held(4))
    assert not asyncio.run(held(40))


def test_a_pass_gives_many_jobs_together_no_more_than_its_part() -> None:
    """Regression: 200 greedy job names made a round of another job take 96 ms; now 5."""

    async def given(jobs: int) -> tuple[float, float]:
        """(seconds given in the second pass, and in a later pass with one greedy job left)."""
        turns = Turns()
        taken = [turns.enter(f"job {number}") for number in range(jobs)]
        for turn in taken:
            turns.charge(turn, 10 * SECONDS)
        await asyncio.sleep(0)
        before = sum(turn.spent for turn in taken)
        await asyncio.sleep(0)
        together = before - sum(turn.spent for turn in taken)
        for _ in range(10 * jobs * MOST_TURNS):
            turns.charge(taken[0], SECONDS)
            await asyncio.sleep(0)
        before = taken[0].spent
        await asyncio.sleep(0)
        return together, before - taken[0].spent

    few = pytest.approx((4 * SHARED_SECONDS, SHARED_SECONDS))
    many = pytest.approx((PASS_SECONDS, SHARED_SECONDS))
    assert asyncio.run(given(4)) == few
    assert asyncio.run(given(100)) == many


def test_a_job_that_connects_anew_has_what_it_took_before_and_is_forgotten_later() -> None:
    async def turn() -> None:
        turns, first, second = Turns(), Line(), Line()
        job = turns.enter("job")
        turns.charge(job, 5 * SECONDS)
        turns.wait(job, first)
        turns.leave(job, first)
        assert first.reads
        assert turns.enter("job") is job and job.is_over
        turns.leave(job, second)
        for _ in range(10):
            await asyncio.sleep(0)
        assert turns.enter("job") is not job

    asyncio.run(turn())


def test_a_job_that_comes_anew_owes_nothing_to_the_turn_of_its_forgotten_one() -> None:
    """A frame to a connection that has just ended may be written after its job is forgotten."""

    async def turn() -> bool:
        turns, line = Turns(), Line()
        forgotten = turns.enter("job")
        turns.leave(forgotten, line)
        job = turns.enter("job")
        turns.charge(forgotten, MOST_TURNS * SECONDS)
        turns.wait(forgotten, line)
        turns.charge(job, SECONDS)
        turns.wait(job, line)
        for _ in range(2 * MOST_TURNS):
            await asyncio.sleep(0)
        return line.reads and turns.enter("job") is job

    assert asyncio.run(turn())


def test_a_connection_that_is_resumed_and_held_again_is_not_read() -> None:
    """Regression: its frames had no room; in mode tls a lane asked for room in an endless loop."""

    async def resume() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = Held(shell, "hostile", 0, 1)
        await rest(shell)
        await flood(hostile)
        turn = hostile.connection.turn
        turn.spent = 10 * SECONDS
        del turn.waiting[hostile.connection]
        hostile.connection.resume()
        assert hostile.connection._held and not hostile.reads
        await until(lambda: hostile.reads)

    asyncio.run(resume())


def test_a_job_that_was_held_is_read_to_its_end_when_it_is_closed() -> None:
    async def close() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = Held(shell, "hostile", 0, 1)
        hostile.socket, peer = socket.socketpair()
        hostile.connection.spend(1.0)
        assert not hostile.reads
        with hostile.socket, peer:
            hostile.connection.close("it is over")
            await until(lambda: hostile.reads)

    asyncio.run(close())


def test_a_run_that_ends_without_a_word_is_closed_as_any_other() -> None:
    """Regression: its connections did not count as closing, so ticks wrote to them: bugs."""

    async def end() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = [Held(shell, "hostile", rank, 2) for rank in range(2)]
        pairs = [socket.socketpair() for _ in hostile]
        for one, pair in zip(hostile, pairs, strict=True):
            one.socket = pair[0]
        payload = messages.encode(messages.Error(int(ErrorCode.PEER_LOST), "", 1))
        crc = KERNELS.crc32c(payload)
        header = Header(MessageKind.ERROR, length=len(payload), payload_crc=crc)
        await rest(shell)
        receive(hostile[0].connection, memoryview(pack_header(header, KERNELS.crc32c) + payload))
        assert all(one.connection.is_closing() for one in hostile)
        for one in (end for pair in pairs for end in pair):
            one.close()

    asyncio.run(end())


def test_a_sum_of_many_parts_goes_on_in_the_next_turns() -> None:
    """Regression: 64 parts of 4 MiB, parked until rank 0 came, were one step of 30 ms."""

    async def send() -> None:
        shell = LaneShell(bare_lane(4 << 20, 4 * CHUNK), KERNELS, BufferPool(BUDGET), 10.0)
        ranks = [Held(shell, "job", rank, 12) for rank in range(12)]
        await until(lambda: all(one.taken for one in ranks))
        before = [one.taken for one in ranks]
        payload = bytes(CHUNK)
        for rank in reversed(range(12)):
            header = contribution(rank, 0, 0, 1, payload)
            data = memoryview(pack_header(header, KERNELS.crc32c) + payload)
            receive(ranks[rank].connection, data)
        shell._flush()
        assert [one.taken for one in ranks] == before
        await until(lambda: all(one.taken > CHUNK for one in ranks))

    asyncio.run(send())


def test_the_answers_of_one_job_are_written_a_turn_at_a_time() -> None:
    """Regression: one result to 400 ranks was written in one step of 95 ms."""

    async def write() -> None:
        shell = LaneShell(bare_lane(64 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        large = [Held(shell, "large", rank, 3) for rank in range(3)]
        small = Held(shell, "small", 0, 1)
        await until(lambda: small.taken and all(one.taken for one in large))
        before = [one.taken for one in (*large, small)]
        for one in (*large, small):
            one.connection.send([bytes(100)], 100)
        large[0].connection.turn.written = SECONDS
        shell._flush()
        assert [one.taken for one in (*large, small)] == [*before[:3], before[3] + 100]
        shell._flush()
        assert [one.taken for one in (*large, small)] == [taken + 100 for taken in before]

    asyncio.run(write())


def test_what_the_kernel_takes_to_copy_bytes_is_of_the_turn() -> None:
    """Regression: a MiB counted 0.1 ms but took 0.5 into new memory: turns took 5 ms."""

    async def read() -> float:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        one = Held(shell, "job", 0, 1)
        await rest(shell)
        spent = one.connection.turn.spent
        one.connection.get_buffer(-1)
        time.sleep(0.01)
        one.connection.buffer_updated(HEADER_SIZE - 1)
        return one.connection.turn.spent - spent

    assert asyncio.run(read()) >= 0.01 + READ_SECONDS


def test_decryption_takes_of_the_turn(tmp_path: Path) -> None:
    """Regression: a turn of 1 ms took 25 ms with decryption."""
    worker, tls, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())

    async def read() -> float:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        link = TlsLink(Sink(), tls, to_lane, to_worker, connection)
        link.begin()
        worker.write(bytes(HEADER_SIZE - 1))
        spent = connection.turn.spent
        link._read = lambda room: time.sleep(0.01) or 0  # type: ignore[method-assign,func-returns-value]
        arrive(link, to_lane.read())
        return connection.turn.spent - spent

    assert asyncio.run(read()) >= 0.01


def test_a_broken_frame_takes_of_the_turn_as_any_other() -> None:
    """Regression: 1,000 ranks that sent garbage at the same time were one pass of 76 ms."""

    async def break_it() -> None:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        hostile = [Held(shell, "hostile", rank, 2) for rank in range(2)]
        await rest(shell)
        turn = hostile[0].connection.turn
        turn.spent = SECONDS - 2 * READ_SECONDS
        hostile[0].socket, peer = socket.socketpair()
        with hostile[0].socket, peer:
            receive(hostile[0].connection, memoryview(bytes(HEADER_SIZE)))
            assert hostile[0].connection.is_closing() and turn.spent >= SECONDS
            assert len(hostile[1].connection.get_buffer(-1)) == 1, "the turn is not over"
            await asyncio.sleep(0.01)

    asyncio.run(break_it())


def test_a_record_that_cannot_be_decrypted_takes_of_the_turn(tmp_path: Path) -> None:
    """Regression: 240 such records at once were one pass of 14 ms."""
    _, tls, to_worker, to_lane = shake_hands(Authority(tmp_path).issue())

    class Aborted(Sink):
        def abort(self) -> None:
            pass

    async def read() -> float:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        connection = shell.connection()
        link = TlsLink(Aborted(), tls, to_lane, to_worker, connection)
        link.begin()
        decrypt = link._read

        def slowly(room: memoryview) -> int:
            time.sleep(0.01)
            return decrypt(room)

        link._read = slowly  # type: ignore[method-assign]
        spent = connection.turn.spent
        arrive(link, b"\x17\x03\x03\x00\x20" + bytes(32))
        return connection.turn.spent - spent

    assert asyncio.run(read()) >= 0.01


@pytest.mark.parametrize("size", [1, READ_BYTES])
def test_what_comes_after_the_end_is_thrown_away_slowly(size: int) -> None:
    """Regression: 120 refused peers that kept sending blocked a lane for 121 ms.

    Uncounted single bytes of 800 peers doubled the duration of another job's rounds.
    """

    async def throw_away() -> int:
        shell = LaneShell(bare_lane(4 << 20), KERNELS, BufferPool(BUDGET), 10.0)
        count = 2 * AT_ONCE
        pairs = [socket.socketpair() for _ in range(count)]
        hostile = [Held(shell, "hostile", rank, count) for rank in range(count)]
        await rest(shell)
        with contextlib.ExitStack() as stack:
            for one, pair in zip(hostile, pairs, strict=True):
                one.socket = stack.enter_context(pair[0])
                stack.enter_context(pair[1])
                one.connection.close("it is over")
            assert not any(one.reads for one in hostile), "all could be read in one pass"
            count = 0
            for _ in range(MOST_BYTES // READ_BYTES):
                await asyncio.sleep(0)
                reads = [one for one in hostile if one.reads]
                assert len(reads) <= AT_ONCE
                for one in reads:
                    assert len(one.connection.get_buffer(-1)) == READ_BYTES
                    one.connection.buffer_updated(size)
                    count += 1
            assert not any(one.reads for one in hostile)
            shell.tick()
            for _ in range(4):
                await asyncio.sleep(0)
            assert all(one.reads for one in hostile), "their ends would go unnoticed"
            return count

    most = MOST_BYTES // READ_BYTES
    assert most <= asyncio.run(throw_away()) <= most + AT_ONCE


class Kept:
    """A connection whose first `resume` fails; `held` until it is resumed."""

    def __init__(self) -> None:
        self.held, self.fails = False, True

    def hold(self) -> None:
        self.held = True

    def resume(self) -> None:
        if self.fails:
            self.fails = False
            raise MemoryError("injected")
        self.held = False


async def one_that_fails_to_go_on() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: failures.append(about))
    turns, connection = Turns(), Kept()
    turn = turns.enter("job")
    turns.charge(turn, SECONDS)
    turns.wait(turn, connection)
    await until(lambda: not connection.fails)
    turns.go_on()  # as each tick does
    await until(lambda: not connection.held)
    assert len(failures) == 1


def test_a_connection_that_could_not_be_resumed_waits_for_the_next_turn() -> None:
    """Regression: the connection was forgotten, and not read until it made room for another."""
    asyncio.run(one_that_fails_to_go_on())
