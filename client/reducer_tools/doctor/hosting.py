"""The diagnosis where no reducers are configured: can this host serve as a host of reducers?"""

from __future__ import annotations

import ipaddress
import secrets

import numpy as np

from reducer import nic
from reducer.units import format_count, format_size
from reducer_client.errors import ReducerError, of_hosted
from reducer_client.hosted.hosted_reducer import HostedReducer
from reducer_client.hosted.hosting import Hosting
from reducer_client.hosted.limits import lanes_beside_workers, memory_beside_workers
from reducer_client.hosted.machine import own_address
from reducer_client.joining import connect
from reducer_tools.doctor import host
from reducer_tools.doctor.diagnosis import Diagnosis
from reducer_tools.doctor.findings import HERE, Finding, fault, warning

_JOB = "doctor"


def diagnose_hosting(hosting: Hosting, seconds: float) -> Diagnosis:
    """Examine the host, and start a hosted reducer on it for one worker.

    ``seconds`` is the limit for joining, and for a round.
    """
    address = own_address(hosting.interface, hosting.toward)
    interface = nic.interface_of(address) if address else ""
    lanes = lanes_beside_workers()
    found = Diagnosis(host.examine([interface] if interface else [], lanes, None), [])
    found.host.facts["hosted reducer"] = (
        f"at {address or 'no address'}, {_ports(hosting)}, {format_count(lanes, 'lane')}, "
        f"{format_size(memory_beside_workers(1, lanes))} for a few workers"
    )
    found.findings += found.host.findings
    if not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        text = (
            f"its address toward {hosting.toward} is {address or 'unknown'}, which other machines "
            "cannot reach: for a job on several machines set MASTER_ADDR to rank 0's host, or "
            "REDUCER_SOCKET_IFNAME to the interface"
        )
        found.findings.append(warning("no-address", HERE, text))
    found.findings += _try(address or "127.0.0.1", hosting, seconds)
    return found


def _ports(hosting: Hosting) -> str:
    first, last = hosting.ports
    return "any free port" if last == 0 else f"port {first} to {last}"


def _try(address: str, hosting: Hosting, seconds: float) -> list[Finding]:
    """Start a reducer as a worker would, and sum over it."""
    key = secrets.token_bytes(32)
    own = HostedReducer(address, hosting.ports, key, ["--lanes", "1"], hosting.environment)
    try:
        with of_hosted():
            place = own.start()
        with connect(
            place, job=_JOB, rank=0, world_size=1, key=key, connect_timeout=seconds, hosted=False
        ) as group:
            group.all_reduce(np.ones(1)).wait(seconds)
        return []
    except (OSError, ReducerError) as error:
        return [fault("hosted-reducer", HERE, f"a hosted reducer does not work here: {error}")]
    finally:
        own.stop()
