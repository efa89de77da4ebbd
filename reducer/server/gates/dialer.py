"""Connects a lane to lanes of other reducers, as the core asks (events.Dial).

Law: every Dial is answered once, with Dialed or DialFailed, and an attempt that has failed leaves
neither a task nor a descriptor. At most AT_ONCE attempts are in flight, each for three deadlines of
STEP_SECONDS at most: the name, the connection, the proof. One job has AT_ONCE_OF_JOB of them, so
addresses that do not answer hold up only the jobs that have named them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from reducer.cluster.addresses import split_address
from reducer.cluster.variables import ClusterError
from reducer.core.surface.events import Dial, DialFailed
from reducer.server.data.connection import Connection
from reducer.server.gates.proofs import Begin, DialError, Proof
from reducer.server.sockets import to_connect

STEP_SECONDS = 2.0  # as for prefaces and proofs of those who connect to this lane
AT_ONCE = 16
AT_ONCE_OF_JOB = 4
WAITING_OF_JOB = 256  # attempts that are not begun
# A name may have many addresses; the first ones share the time of the connection.
MOST_ADDRESSES = 4
# An attempt that takes longer than all deadlines has lost its task for lack of memory.
LOST_SECONDS = 4 * STEP_SECONDS

Address = tuple[int, tuple[Any, ...]]  # the family, and the address of sockets


class _Attempt:
    """An attempt in flight. ``connection`` is None until the other lane has proven itself.

    Law: from then on nothing cancels the task. In the next pass of the loop the connection is made,
    and the core gets Dialed.
    """

    def __init__(self, dial: Dial, until: float) -> None:
        self.dial = dial
        self.until = until
        self.task: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.is_late = False

    @property
    def has_succeeded(self) -> bool:
        """Whether the core knows the connection, by Dialed. The connection may have ended since."""
        made = self.connection
        return made is not None and (made.is_made or made.is_closing())

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Dialer:
    """The outgoing connections of one lane until they stand.

    ``make`` makes the connection for a Dial whose other lane has proven itself; the connection
    reports Dialed. ``feed`` takes the failures.
    """

    def __init__(
        self,
        proof: Proof,
        make: Callable[[Dial], Connection],
        feed: Callable[[DialFailed], None],
        congestion: str = "",
    ) -> None:
        self._proof = proof
        self._make = make
        self._feed = feed
        self._congestion = congestion
        self._attempts: dict[int, _Attempt] = {}  # by link
        self._of_job: Counter[str] = Counter()  # attempts in flight
        self._waiting: dict[str, deque[Dial]] = {}  # by job
        self._refused: list[Dial] = []  # for lack of room; not answered yet
        self._is_due = False
        self._is_closed = False

    def __len__(self) -> int:
        """How many attempts are in flight."""
        return len(self._attempts)

    def dial(self, dial: Dial) -> None:
        """Begin soon: the core takes an answer only after it has carried out all its outputs."""
        waiting = self._waiting.setdefault(dial.job, deque())
        (waiting if len(waiting) < WAITING_OF_JOB else self._refused).append(dial)
        self._go_on_soon()

    def tick(self) -> None:
        """End the attempts whose tasks the loop has lost. Schedule the work that is due again, in
        case scheduling has failed.
        """
        now = asyncio.get_running_loop().time()
        for attempt in list(self._attempts.values()):
            if attempt.until > now:
                continue
            if attempt.is_late:
                if not attempt.has_succeeded:
                    attempt.cancel()
                self._end(attempt, f"no answer in {LOST_SECONDS:g} s")
            attempt.is_late = True  # if the process was stopped, the task has had no turn yet
        self._go_on_soon()

    async def close(self) -> None:
        """Answer every Dial, and end the attempts. Later ones are not answered."""
        self._is_closed = True
        attempts = list(self._attempts.values())
        waiting = [dial for dials in self._waiting.values() for dial in dials]
        self._waiting.clear()
        why = "this reducer is ending"
        for attempt in attempts:
            if attempt.connection is None:
                attempt.cancel()
                self._end(attempt, why)
        for dial in waiting + self._refused:
            self._fail(dial, why)
        self._refused.clear()
        if tasks := [attempt.task for attempt in attempts if attempt.task is not None]:
            await asyncio.wait(tasks, timeout=1.0)  # a lost task never ends
        for attempt in list(self._attempts.values()):
            self._end(attempt, why)
        self._proof.close()

    def _go_on_soon(self) -> None:
        if (self._waiting or self._refused) and not self._is_due and not self._is_closed:
            asyncio.get_running_loop().call_soon(self._go_on)
            self._is_due = True

    def _go_on(self) -> None:
        self._is_due = False
        refused, self._refused = self._refused, []
        for late in refused:
            self._fail(late, f"{WAITING_OF_JOB} other attempts of job {late.job!r} wait already")
        while len(self._attempts) < AT_ONCE and (dial := self._next()) is not None:
            self._begin(dial)

    def _next(self) -> Dial | None:
        """The next Dial of the job with the fewest attempts in flight; None if none may begin."""
        job = min(self._waiting, key=self._of_job.__getitem__, default=None)
        if job is None or self._of_job[job] >= AT_ONCE_OF_JOB:
            return None
        waiting = self._waiting[job]
        dial = waiting.popleft()
        if not waiting:
            del self._waiting[job]
        return dial

    def _begin(self, dial: Dial) -> None:
        loop = asyncio.get_running_loop()
        attempt = self._attempts[dial.link] = _Attempt(dial, loop.time() + LOST_SECONDS)
        self._of_job[dial.job] += 1
        attempt.task = loop.create_task(self._run(attempt))

    async def _run(self, attempt: _Attempt) -> None:
        try:
            await self._connect(attempt)
            why = ""
        except DialError as error:
            why = str(error)
        except Exception as error:
            why = f"internal error: {type(error).__name__}: {error}"
            what = f"connecting to {attempt.dial.address} has failed"
            # No local name for the error or its context: it would be a cycle.
            asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
        self._end(attempt, why)

    def _end(self, attempt: _Attempt, why: str) -> None:
        """The attempt is over: answer it, unless it has succeeded or was answered before."""
        dial = attempt.dial
        if self._attempts.pop(dial.link, None) is None:
            return
        self._of_job[dial.job] -= 1
        if not self._of_job[dial.job]:
            del self._of_job[dial.job]
        self._go_on_soon()
        if attempt.has_succeeded:
            return
        if attempt.connection is not None:
            attempt.connection.clean_up()  # it takes part in the turns of its job
        self._fail(dial, why)

    def _fail(self, dial: Dial, why: str) -> None:
        self._feed(DialFailed(dial.link, f"{dial.address}, lane {dial.lane}: {why}"))

    async def _connect(self, attempt: _Attempt) -> None:
        dial = attempt.dial
        try:
            host, port = split_address(dial.address)
        except ClusterError as error:
            raise DialError(str(error)) from None
        host = host.strip("[]")
        async with within("its name was not resolved"):
            addresses = await resolve(host, port)
        sock = await reach(addresses, self._congestion)
        try:
            async with within("it did not prove itself"):
                begin = await self._proof.prove(sock, host, dial)
            await self._hand_over(attempt, sock, begin)
        except OSError as error:
            raise DialError(f"the connection broke: {reason_of(error)}") from None
        finally:
            if not attempt.has_succeeded:
                sock.close()

    async def _hand_over(self, attempt: _Attempt, sock: socket.socket, begin: Begin) -> None:
        """Give the socket to the loop, whose transport closes it from now on."""
        connection = attempt.connection = self._make(attempt.dial)
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: begin(connection), sock=sock
        )
        if not attempt.has_succeeded:  # `connection_made` has failed
            transport.abort()
            raise DialError("internal error")


@contextlib.asynccontextmanager
async def within(what: str) -> AsyncGenerator[None]:
    """Raises DialError with ``what`` if the block takes longer than STEP_SECONDS."""
    limit = asyncio.timeout(STEP_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():  # the kernel gave up a connection
            raise
        raise DialError(f"{what} in {STEP_SECONDS:g} s") from None


async def resolve(host: str, port: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DialError(f"no address is found for {host!r}: {reason_of(error)}") from None
    return [(family, address) for family, _, _, _, address in found][:MOST_ADDRESSES]


async def reach(addresses: Sequence[Address], congestion: str) -> socket.socket:
    """Connect to the first address that answers. Each has an equal share of the time that is
    left.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + STEP_SECONDS
    failures = []
    for number, (family, address) in enumerate(addresses):
        share = max(0.0, until - loop.time()) / (len(addresses) - number)
        try:
            async with asyncio.timeout(share):
                return await _connected(family, address, congestion)
        except TimeoutError:
            failures.append(f"no connection in {share:.1f} s")
        except OSError as error:
            failures.append(reason_of(error))
    raise DialError(", then ".join(dict.fromkeys(failures)))


async def _connected(family: int, address: tuple[Any, ...], congestion: str) -> socket.socket:
    sock = to_connect(family, congestion)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
        # Nobody listens there, and the kernel has chosen the same port for this end.
        if sock.getsockname() == sock.getpeername():
            raise OSError(errno.ECONNREFUSED, "connected to itself")
    except BaseException:
        sock.close()
        raise
    return sock


def reason_of(error: OSError | UnicodeError) -> str:
    """The system's reason, in few words."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(getattr(error, "strerror", None) or error)
