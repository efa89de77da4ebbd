"""A job of real NCCL on GPUs, through the plugin: each rank is a process and looks like a node.

Ranks may share one GPU: NCCL allows this if each rank has another NCCL_HOSTID.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reducer_tools.nccl import job_log
from reducer_tools.nccl.installed import NotFoundError, find_nccl
from reducer_tools.nccl.versions import Version, forced_algorithm, from_code
from tests.support import nccl_wheels
from tests.support.arrays import Array
from tests.support.cuda import Device
from tests.support.libnccl import Communicator, Nccl
from tests.support.ranks import RunningRanks, Tell, start_ranks, values
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

SECONDS = 120.0  # for one collective; ranks that share a GPU take turns
# Variables that may be set and would make NCCL choose another algorithm or transport.
_STRONGER = ("NCCL_ALGO", "NCCL_CONF_FILE", "NCCL_NET", "NCCL_PROTO", "NCCL_TUNER_PLUGIN")

Body = Callable[..., Any]  # body(member, *args): what one rank does


@dataclass(frozen=True)
class Job:
    """The parameters of all ranks. In ``settings``, None removes a variable."""

    addresses: list[str]
    logs: Path
    library: Path
    settings: Mapping[str, str | None] = field(default_factory=dict)

    def log(self, rank: int) -> Path:
        return self.logs / f"nccl.rank{rank}.log"


@dataclass(frozen=True)
class Ended:
    """The results of a job: the values of its ranks, and evidence of how their bytes travelled."""

    values: list[Any]
    contributed: int  # payload of all ranks in all-reduces
    came: int  # payload that the reducers received from the job
    logs: list[str]  # NCCL's, by rank

    def assert_set_up(self) -> None:
        for rank, log in enumerate(self.logs):
            assert set_up(log) == {rank}, f"rank {rank}: no CollNet over REDUCER in its log\n{log}"

    def assert_through_reducers(self) -> None:
        """Check NCCL's log and the reducers' counters, since either alone may be wrong."""
        self.assert_set_up()
        assert self.came >= self.contributed > 0, (
            f"{self.came} bytes came to the reducers, expected {self.contributed} or more"
        )


def set_up(log: str) -> set[int]:
    """The ranks that have CollNet over the reducers, by NCCL's log."""
    return job_log.read(log.splitlines()).ranks


def libraries() -> list[Path]:
    """Every libnccl on this machine: first the frameworks', last those of `make test-nccl`."""
    try:
        found = [nccl.path for nccl in find_nccl(os.environ)]
    except NotFoundError:
        found = []
    kept = [nccl_wheels.library(v) for v in (*nccl_wheels.LATER, *nccl_wheels.LOAD_A_PLUGIN)]
    return found + [path for path in kept if path.exists()]


def environment(rank: int, job: Job, version: Version) -> dict[str, str]:
    """The variables for a rank with a version of NCCL."""
    ours = {
        "NCCL_HOSTID": f"h{rank}",
        "NCCL_COLLNET_ENABLE": "1",
        "NCCL_NET_PLUGIN": "reducer",
        "NCCL_ALGO": forced_algorithm(version),
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_MAX_CTAS": "2",
        "NCCL_NET_GDR_LEVEL": "LOC",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING,COLL",
        "NCCL_DEBUG_FILE": str(job.log(rank)),
        "REDUCER_ADDRS": ",".join(job.addresses),
    }
    return {name: value for name, value in {**ours, **job.settings}.items() if value is not None}


def enter(rank: int, job: Job) -> None:
    """Make this process the rank, before NCCL reads its environment."""
    for name in _STRONGER:
        os.environ.pop(name, None)
    os.environ.update(environment(rank, job, from_code(Nccl(job.library).version)))


def leave(contributed: int, tell: Tell) -> None:
    """Report this rank's bytes, and wait until the parent has read the reducers' counters."""
    tell(contributed)
    tell.hear()


def end(ranks: RunningRanks, world: int, reducers: Reducers, job: Job) -> Ended:
    """The parent's side of `leave`."""
    contributed = sum(ranks.receive(rank, SECONDS) for rank in range(world))
    came = reducers.bytes_in()
    for rank in range(world):
        ranks.send(rank)
    found = values(ranks.collect(SECONDS))
    logs = [job.log(rank).read_text(encoding="utf-8", errors="replace") for rank in range(world)]
    return Ended(found, contributed, came, logs)


class Member:
    """One rank on its device, with a communicator of all ranks; `meet` makes further ones."""

    def __init__(self, rank: int, world: int, job: Job, tell: Tell) -> None:
        self.rank, self.world, self.tell = rank, world, tell
        self.contributed = 0
        enter(rank, job)
        self.nccl = Nccl(job.library)
        self.device = Device(rank)
        self.comms: list[Communicator] = []
        self.comm = self.meet()

    def meet(self) -> Communicator:
        """Make another communicator, which lives as long as the rank; needs `introduce`."""
        if self.rank == 0:
            self.tell(self.nccl.unique_id())
        self.comms.append(self.nccl.join(self.tell.hear(), self.rank, self.world))
        return self.comms[-1]

    def finish(self, comm: Communicator) -> None:
        """Wait until the stream is done; LibraryError as soon as NCCL reports an error."""

        def done() -> bool:
            comm.check()
            return self.device.idle()

        wait_until(done, SECONDS, f"rank {self.rank}: a collective", interval=0.001)

    def all_reduce(
        self, given: Array, op: str, comm: Communicator | None = None, in_place: bool = False
    ) -> Array:
        """All-reduce from host memory to host memory."""
        of = comm or self.comm
        send = self.device.put(given)
        receive = send if in_place else self.device.put(np.zeros_like(given))
        of.all_reduce(send, receive, given.size, given.dtype.name, op, self.device.stream)
        self.finish(of)
        self.contributed += given.nbytes
        found = self.device.read(receive, given)
        self.device.free({send, receive})
        return found

    def abort(self) -> None:
        while self.comms:
            self.comms.pop().abort()


def run_member(
    rank: int, world: int, job: Job, body: Body, args: tuple[Any, ...], tell: Tell
) -> Any:
    member = Member(rank, world, job, tell)
    result = body(member, *args)
    leave(member.contributed, tell)
    for comm in member.comms:
        comm.destroy()
    return result


def introduce(ranks: RunningRanks, world: int) -> None:
    """Pass the id that rank 0 made to all ranks."""
    unique_id = ranks.receive(0, SECONDS)
    for rank in range(world):
        ranks.send(rank, unique_id)


@contextmanager
def start(world: int, job: Job, body: Body, *args: Any) -> Iterator[RunningRanks]:
    """Start members, and return when they have a communicator."""
    with start_ranks(world, run_member, job, body, args, talk=True) as ranks:
        introduce(ranks, world)
        yield ranks


def run(world: int, reducers: Reducers, job: Job, body: Body, *args: Any) -> Ended:
    with start(world, job, body, *args) as ranks:
        return end(ranks, world, reducers, job)
