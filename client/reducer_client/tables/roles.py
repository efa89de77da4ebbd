"""The roles of a job with parameter servers: ``ps``, ``worker``, ``chief``, ``evaluator``.

A program that all tasks of a job run::

    roles.add_flags(parser)
    role = roles.find_role(parser.parse_args())
    if role.kind == "ps":
        role.serve()  # does not return
    with role.parameter_server() as ps: ...

The flags are those of the distributed programs of TensorFlow 1: ``--ps_hosts=a:2222,b:2222
--worker_hosts=c:2222,d:2222 --job_name=worker --task_index=0``. Without flags the role comes from
TF_CONFIG, CLUSTER_SPEC or a launcher.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from reducer.cluster.addresses import normalize_address
from reducer.cluster.discovery import OWN_CLUSTER_JOB, Cluster
from reducer_client import config
from reducer_client.tables.connecting import parameter_server
from reducer_client.tables.server import ParameterServer

Kind = Literal["ps", "worker", "evaluator"]

JOB_NAMES = ("ps", "worker", "chief", "evaluator")


@dataclass(frozen=True)
class Role:
    """The role of this process in its job.

    Attributes:
        kind: ``"ps"``, a reducer; ``"worker"``, worker 0 is the chief; or ``"evaluator"``, which
            only pulls.
        index: the number of this reducer or worker, from 0 on; 0 for an evaluator.
        reducers: the addresses of all reducers.
        workers: the number of workers, the chief among them.
        job: the name of the job.
    """

    kind: Kind
    index: int
    reducers: tuple[str, ...]
    workers: int
    job: str = OWN_CLUSTER_JOB

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which writes checkpoints and reports."""
        return self.kind == "worker" and self.index == 0

    def parameter_server(self, **options: Any) -> ParameterServer:
        """Connect to the reducers as this worker, or as a reader if this is an evaluator.

        ``options`` are those of `reducer_client.parameter_server`, which lists the errors.
        """
        if self.kind == "ps":
            raise ValueError(f"ps {self.index} is a reducer: call serve()")
        options = {"job": self.job, **options}
        if self.kind == "evaluator":
            return parameter_server(self.reducers, reader=True, workers=self.workers, **options)
        return parameter_server(self.reducers, worker=self.index, workers=self.workers, **options)

    def serve(self, *options: str) -> NoReturn:
        """Become the reducer: this process goes on as ``reducer serve`` on the port of its address.

        Like ``server.join()`` in TensorFlow, this method never returns: end the process to end the
        reducer. ``options`` are further options of ``reducer serve``. Beyond loopback ``reducer
        serve`` needs a key, certificates or ``--insecure``.
        """
        if self.kind != "ps":
            raise ValueError(f"this {self.kind} is no reducer: call parameter_server()")
        host, _, port = self.reducers[self.index].rpartition(":")
        listen = host if host in ("localhost", "127.0.0.1", "[::1]") else "0.0.0.0"
        where = ["--host", listen.strip("[]"), "--port", port]
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "reducer", "serve", *where, *options])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `find_role` reads."""
    flags = parser.add_argument_group("cluster", "by default TF_CONFIG, or a launcher's variables")
    flags.add_argument("--ps_hosts", default="", help="host:port of each reducer, with commas")
    flags.add_argument("--worker_hosts", default="", help="host:port of each worker, with commas")
    flags.add_argument("--job_name", default="", help=f"role of this task: {', '.join(JOB_NAMES)}")
    flags.add_argument("--task_index", type=int, default=0, help="number of this task in its job")


def find_role(flags: argparse.Namespace | None = None) -> Role:
    """The role of this process, from the flags of `add_flags` or from the environment.

    Raises ValueError if a value is missing, or contradicts another value.
    """
    if flags is not None and (flags.job_name or flags.ps_hosts or flags.worker_hosts):
        return _by_flags(flags)
    return _by_environment(config.find_cluster())


def _by_flags(flags: argparse.Namespace) -> Role:
    reducers = _addresses("--ps_hosts", flags.ps_hosts)
    workers = _addresses("--worker_hosts", flags.worker_hosts)
    name, index = flags.job_name, flags.task_index
    if name not in JOB_NAMES:
        raise ValueError(f"--job_name={name}: expected one of {', '.join(JOB_NAMES)}")
    if name == "evaluator":
        return Role("evaluator", 0, reducers, len(workers))
    most = {"ps": len(reducers), "worker": len(workers), "chief": 1}[name]
    if not 0 <= index < most:
        raise ValueError(f"--task_index={index}: expected 0 to {most - 1} for --job_name={name}")
    return Role("ps" if name == "ps" else "worker", index, reducers, len(workers))


def _addresses(flag: str, text: str) -> tuple[str, ...]:
    try:
        found = tuple(normalize_address(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None
    if not found:
        raise ValueError(f"{flag}: expected host:port,host:port, got no address")
    if twice := sorted({each for each in found if found.count(each) > 1}):
        raise ValueError(f"{flag}: {', '.join(twice)} is listed twice: name each task once")
    return found


def _by_environment(found: Cluster) -> Role:
    if found.addresses is None:
        raise ValueError(
            "no reducers: give --ps_hosts, or set TF_CONFIG with a pool ps, or REDUCER_ADDRS"
        )
    reducers = found.addresses.value
    workers = 0 if found.world_size is None else found.world_size.value
    job = OWN_CLUSTER_JOB if found.job is None else found.job.value
    task = None if found.task is None else found.task.value
    if task is not None and task.role == "evaluator":
        return Role("evaluator", 0, reducers, workers, job)
    if task is not None and task.role == "reducer":
        if task.address not in reducers:
            raise ValueError(
                f"this reducer is {task.address}, which is not in {found.addresses.source}: "
                f"{', '.join(reducers)}"
            )
        return Role("ps", reducers.index(task.address), reducers, workers, job)
    if found.rank is None:
        raise ValueError(
            "no role: give --job_name and --task_index, or set TF_CONFIG with a task, or start "
            "this program with a launcher that sets the rank"
        )
    return Role("worker", found.rank.value, reducers, workers or found.rank.value + 1, job)
