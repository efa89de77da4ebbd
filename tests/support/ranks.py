"""Ranks as real processes: each runs one function and sends its result or its error back.

Ranks are forked from a server that has loaded torch and the client (`tests.support.warm`), so a
rank starts in milliseconds. A rank is `fresh` if it must start like any program, with an
environment that the dynamic linker or an import reads.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import reducer_client
from reducer.parent import die_with_parent

if TYPE_CHECKING:  # an installation without compiled parts has no engine
    from reducer_client import Group

_SPAWN = multiprocessing.get_context("spawn")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.warm"])
all_fresh = False
"""Set by tests of libraries that must not meet torch, or that read the environment when loaded."""
# Start multiprocessing's resource tracker before any test counts processes: it lives as long as
# this process.
resource_tracker.ensure_running()


@dataclass(frozen=True)
class Outcome:
    """How one rank ended: with a value, with an error, or with neither (killed, or late)."""

    rank: int
    value: Any = None
    error: Exception | None = None
    trace: str = ""
    reported: bool = True


class RunningRanks:
    """The processes of one call of ``start_ranks``; the context manager ends all of them."""

    def __init__(self, started: Sequence[tuple[BaseProcess, Connection]]) -> None:
        self._started = started
        self._outcomes: dict[int, Outcome] = {}

    def __enter__(self) -> RunningRanks:
        return self

    def __exit__(self, *exception: object) -> None:
        for process, connection in self._started:
            process.kill()
            process.join()
            process.close()
            connection.close()

    def pid(self, rank: int) -> int:
        pid = self._started[rank][0].pid
        assert pid is not None
        return pid

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> None:
        os.kill(self.pid(rank), signum)

    def receive(self, rank: int, timeout: float = 30.0) -> Any:
        """The next value that the rank passed to its ``tell``."""
        connection = self._started[rank][1]
        assert connection.poll(timeout), f"rank {rank} sent no message for {timeout} s"
        message = connection.recv()
        assert not isinstance(message, Outcome), f"rank {rank} ended: {message}"
        return message

    def wait(self, rank: int, timeout: float = 30.0) -> None:
        """Wait until there is a value to `receive`."""
        assert self._started[rank][1].poll(timeout), f"rank {rank} sent no message for {timeout} s"

    def send(self, rank: int, message: object = None) -> None:
        """Send the message that the rank's ``tell.hear()`` waits for."""
        self._started[rank][1].send(message)

    def collect_one(self, rank: int, timeout: float = 60.0) -> Outcome:
        """The outcome of one rank while the others continue."""
        connection = self._started[rank][1]
        if not connection.poll(timeout):
            self._show_stacks()
            raise AssertionError(f"rank {rank} has not ended within {timeout} s")
        outcome = connection.recv()
        assert isinstance(outcome, Outcome), f"rank {rank} said {outcome!r}"
        return outcome

    def collect(self, timeout: float = 60.0) -> list[Outcome]:
        """All outcomes by rank; a rank that has not reported in time has ``reported=False``."""
        deadline = time.monotonic() + timeout
        open_ranks = {c: rank for rank, (_, c) in enumerate(self._started)}
        while open_ranks:
            left = deadline - time.monotonic()
            ready = wait(list(open_ranks), max(0.0, left))
            if not ready:
                self._show_stacks()
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                except EOFError:
                    del open_ranks[connection]
                    continue
                if isinstance(message, Outcome):
                    self._outcomes[message.rank] = message
                    del open_ranks[connection]
        silent = [Outcome(rank, reported=False) for rank in range(len(self._started))]
        return [self._outcomes.get(o.rank, o) for o in silent]

    def _show_stacks(self) -> None:
        """Let the ranks that run write the stacks of their threads to stderr."""
        for rank, (process, _) in enumerate(self._started):
            if process.is_alive():
                self.kill(rank, signal.SIGUSR1)
        time.sleep(0.5)


class Tell:
    """Exchanges messages with the test; with ``talk``, the last argument of a rank's function."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, message: object) -> None:
        self._connection.send(message)

    def hear(self) -> Any:
        return self._connection.recv()

    def heard(self) -> bool:
        """Whether `hear` would return at once."""
        return self._connection.poll()


def join(rank: int, world_size: int, addresses: list[str], job: str, **options: Any) -> Group:
    """``reducer_client.connect`` as ranks call it, with time for a busy machine."""
    options.setdefault("connect_timeout", 60)
    return reducer_client.connect(addresses, job=job, rank=rank, world_size=world_size, **options)


def server() -> tuple[int | None, int | None]:
    """The server from which ranks are forked: its pid, and the descriptor that keeps it alive.

    Both exist once the first rank has started.
    """
    running = forkserver._forkserver
    return running._forkserver_pid, running._forkserver_alive_fd


def start_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    talk: bool = False,
    fresh: bool = False,
) -> RunningRanks:
    """Start ``function(rank, world_size, *args)`` in ``world_size`` processes."""
    context = _SPAWN if fresh or all_fresh else _FORKS
    started = []
    for rank in range(world_size):
        here, there = context.Pipe()
        arguments = (there, dict(os.environ), talk, function, rank, world_size, args)
        process = context.Process(target=_main, args=arguments, name=f"rank-{rank}")
        process.start()
        there.close()
        started.append((process, here))
    return RunningRanks(started)


def run_ranks(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 90.0,
    fresh: bool = False,
) -> list[Any]:
    """The values of all ranks; AssertionError with the traces if any failed or is late."""
    with start_ranks(world_size, function, *args, fresh=fresh) as ranks:
        return values(ranks.collect(timeout))


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """The values of all ranks; AssertionError with the traces if any failed or is late."""
    failed = [o for o in outcomes if o.error is not None or not o.reported]
    if failed:
        texts = (f"rank {o.rank}: {o.trace or 'no outcome (dead or late)'}" for o in failed)
        raise AssertionError("\n".join(texts))
    return [o.value for o in outcomes]


def _main(
    connection: Connection,
    environment: dict[str, str],
    talk: bool,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
) -> None:
    _die_with_the_test()
    faulthandler.register(signal.SIGUSR1)
    os.environ.clear()  # the server's environment
    os.environ.update(environment)
    # A test run in the background of a shell inherits an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    extra = (Tell(connection),) if talk else ()
    try:
        outcome = Outcome(rank, value=function(rank, world_size, *args, *extra))
    except BaseException as raised:  # pytest raises BaseException in a failed check
        error = raised if isinstance(raised, Exception) else AssertionError(repr(raised))
        outcome = Outcome(rank, error=error, trace=traceback.format_exc())
    connection.send(outcome)
    connection.close()
    if server()[1] is not None:
        atexit._run_exitfuncs()  # multiprocessing skips these in forked processes


def _die_with_the_test() -> None:
    """End the server, and then its ranks, when no process holds its descriptor any more."""
    die_with_parent(os.getppid())
    parent = multiprocessing.parent_process()
    assert parent is not None
    if not parent.is_alive():
        os._exit(1)
    if (alive := server()[1]) is not None:
        os.close(alive)
