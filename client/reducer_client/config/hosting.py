"""Settings of hosted reducers, and whether and where the ranks of a job meet before they join."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from zlib import crc32

from reducer.cluster import discovery
from reducer.cluster.addresses import join_address, normalize_address
from reducer_client.config.given import JobSettings, find_value
from reducer_client.hosted.hosting import Hosting

# Where the ranks of a job without reducers meet: this far from MASTER_PORT, where torch listens.
# The next job of the machine often has the next MASTER_PORT.
_MEETING_PORT_OFFSET = 1_000
_MEETING_PORT = 2224
# Variables that are equal on all ranks of a launch, and different for other launches.
_LAUNCHES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HOROVOD_GLOO_RENDEZVOUS_PORT")
# A network for documentation (RFC 5737): the default route leads there.
_ELSEWHERE = "192.0.2.1"


def resolve_hosting(
    given: JobSettings | None = None, environ: Mapping[str, str] | None = None
) -> Hosting:
    """The settings of hosted reducers. Raises ValueError, which names the bad value."""
    env = os.environ if environ is None else environ
    given = JobSettings() if given is None else given
    rates = env.get("REDUCER_DEDICATED_GBPS", "")
    master, _ = discovery.find_master(env)
    own_rates = _rates("REDUCER_GBPS", env.get("REDUCER_GBPS", ""))
    if len(own_rates) > 1:
        raise ValueError(f"REDUCER_GBPS={env['REDUCER_GBPS']!r}: expected one rate")
    return Hosting(
        wanted=find_value("hosted", given.hosted, env),
        interface=env.get("REDUCER_SOCKET_IFNAME", ""),
        toward=_ELSEWHERE if master is None else master.value,
        ports=_resolve_ports(env),
        gbps=own_rates[0] if own_rates else 0.0,
        dedicated_gbps=_rates("REDUCER_DEDICATED_GBPS", rates),
        congestion=find_value("congestion", given.congestion, env),
        environment=hosted_environment(),
    )


def needs_meeting(
    hosting: Hosting, dedicated: int, world_size: int, *, several_machines: bool, tls: bool
) -> bool:
    """Whether the ranks must meet before they join, because there may be hosted reducers.

    ``several_machines``: whether the ranks may be on more than one machine. Raises ValueError if
    only hosted reducers are left and the program has certificates.
    """
    if hosting.wanted != "auto":
        return hosting.wanted
    if tls and not dedicated:
        raise ValueError(
            "certificates (REDUCER_TLS_CERT, ...) without reducer addresses (REDUCER_ADDRS): "
            "reducers that the workers host have a key but do not encrypt; hosted=True or "
            "REDUCER_HOSTED=1 accepts this"
        )
    # With certificates, no connection may lack encryption unless the program asks for that.
    return not dedicated or (world_size > dedicated and several_machines and not tls)


def find_meeting(one_machine: bool, environ: Mapping[str, str] | None = None) -> str:
    """The address at which the ranks of a job without reducers meet.

    It is ``REDUCER_MEETING``, else MASTER_ADDR with a port 1,000 below MASTER_PORT (2224 without
    MASTER_PORT), else loopback if all ranks run on one machine, with a port for this launch if the
    launch has a name. Raises ValueError if none of these is known.
    """
    env = os.environ if environ is None else environ
    given = env.get("REDUCER_MEETING", "")
    if given:
        return normalize_address(given)
    master, port = discovery.find_master(env)
    if master is not None:
        number = _MEETING_PORT if port is None else _apart_from(port.value)
        return join_address(master.value, number)
    if not one_machine:
        raise ValueError(
            "no reducer addresses (REDUCER_ADDRS), so the workers host the reducers, but there is "
            "no address where the workers could meet: set MASTER_ADDR to the host of rank 0, or "
            "REDUCER_MEETING to a host and port on its machine"
        )
    launch = find_launch(None, env)
    # Below Linux's ephemeral ports.
    return f"127.0.0.1:{10_000 + crc32(launch.encode()) % 20_000 if launch else _MEETING_PORT}"


def find_launch(run_id: str | None, environ: Mapping[str, str] | None = None) -> str:
    """A name of this start of the job that all ranks know and other jobs do not have; "" if none.

    It is the run id, else the job's name, else the name that Open MPI or Horovod give their launch.
    """
    env = os.environ if environ is None else environ
    for found in (discovery.find_run_id(env, run_id), discovery.find_job(env, None, None)):
        if found is not None:
            return found.value
    return next((env[name] for name in _LAUNCHES if env.get(name, "")), "")


def _apart_from(port: int) -> int:
    return port - _MEETING_PORT_OFFSET if port > 2_000 else port + _MEETING_PORT_OFFSET


def daemon_environment() -> dict[str, str]:
    """The environment of an embedded daemon, without most REDUCER_* variables.

    The daemon's options come only from its arguments.
    """
    # The daemon needs our security mode, or the client would refuse it.
    kept = {"REDUCER_KEY_FILE", "REDUCER_TLS_CERT", "REDUCER_TLS_KEY", "REDUCER_TLS_CA"}
    return hosted_environment(kept)


def hosted_environment(also: Collection[str] = ()) -> dict[str, str]:
    """The environment of a hosted reducer, whose key is an argument, and the variables `also`."""
    kept = {"REDUCER_KERNELS", "REDUCER_TIMELINE", *also}
    found = {k: v for k, v in os.environ.items() if not k.startswith("REDUCER_") or k in kept}
    return {**found, "PYTHONSAFEPATH": "1"}  # imports nothing from the current directory


def _resolve_ports(env: Mapping[str, str]) -> tuple[int, int]:
    text = env.get("REDUCER_HOSTED_PORTS", "").strip()
    first, dash, last = text.partition("-")
    try:
        ports = (int(first or 0), int((last if dash else first) or 0))
    except ValueError:
        ports = (-1, -1)
    if not (ports == (0, 0) or 1 <= ports[0] <= ports[1] <= 65535):
        raise ValueError(
            f"REDUCER_HOSTED_PORTS={text!r}: expected a port or FIRST-LAST, from 1 to 65535"
        )
    return ports


def _rates(variable: str, text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        rates = (-1.0,)
    if not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(f"{variable}={text!r}: expected Gbit/s above 0")
    return rates
