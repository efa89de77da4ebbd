"""Open MPI starts the workers, so that MPI runs in the same processes as the other contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.fleet import Fleet, Place

# The host of mpirun. Ranks reach this host over the lab's bridge, since they have other loopbacks.
HOST = "mpirun"


def start(
    fleet: Fleet,
    place: Place,
    hosts: Sequence[str],
    commands: Sequence[Sequence[str]],
    interface: str,
    env: Mapping[str, str],
) -> None:
    """Start one command on each host; the rank in MPI is the position of the host."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
    for name, value in _parameters(interface).items():
        line += ["--mca", name, value]
    for host, command in zip(hosts, commands, strict=True):
        line += ["-np", "1", *place.command(host, command), ":"]
    # PMIx: the address of mpirun. The default is a loopback, which ranks do not share.
    fleet.start(HOST, line[:-1], {**env, "PMIX_MCA_ptl_base_if_include": interface})


def _parameters(interface: str) -> dict[str, str]:
    """Parameters for TCP only, also between ranks that Open MPI believes to share memory."""
    return {
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": interface,
        "oob_tcp_if_include": interface,
        "mpi_yield_when_idle": "1",
    }
