"""Open MPI: starts the workers, so that MPI lives in the processes of the other contenders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.fleet import Fleet, Place

# The host of mpirun. Ranks reach it over the lab's bridge, as they do not share its loopback.
HOST = "mpirun"


def start(
    fleet: Fleet,
    place: Place,
    hosts: Sequence[str],
    commands: Sequence[Sequence[str]],
    interface: str,
    env: Mapping[str, str],
) -> None:
    """Start one command on each host as the MPI rank of its position."""
    line = ["mpirun", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
    for name, value in _parameters(interface).items():
        line += ["--mca", name, value]
    for host, command in zip(hosts, commands, strict=True):
        line += ["-np", "1", *place.command(host, command), ":"]
    # PMIx: where a rank finds mpirun; by default on a loopback that they do not share.
    fleet.start(HOST, line[:-1], {**env, "PMIX_MCA_ptl_base_if_include": interface})


def _parameters(interface: str) -> dict[str, str]:
    """TCP alone, also between ranks that Open MPI takes to share a host's memory."""
    return {
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": interface,
        "oob_tcp_if_include": interface,
        "mpi_yield_when_idle": "1",
    }
