"""How the ranks of a job choose their reducers, hosted and dedicated, and start the hosted ones."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
from collections.abc import Sequence

from reducer import nic
from reducer_client.hosted.assignment import Introduction, Machine, assign, find_machines
from reducer_client.hosted.failures import (
    DisagreementError,
    HostedError,
    NotReachedError,
    NotStartedError,
)
from reducer_client.hosted.hosted_reducer import HostedReducer
from reducer_client.hosted.hosting import Hosting
from reducer_client.hosted.limits import lanes_beside_workers, memory_beside_workers
from reducer_client.hosted.machine import machine_id, own_address
from reducer_client.hosted.meeting import Meeting, Record
from reducer_client.hosted.reach import find_unreachable
from reducer_client.hosted.reducers import Reducers

logger = logging.getLogger("reducer_client")
join_logger = logging.getLogger("reducer_client.join")

_KEY_BYTES = 32
_REACH_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"


def form(
    meeting: Meeting, rank: int, hosting: Hosting, dedicated: Sequence[str], *, key: bytes
) -> Reducers:
    """Choose the reducers together with all other ranks, and start the hosted ones.

    Args:
        dedicated: the addresses of the dedicated reducers.
        key: the job's key; b"" means none. The hosted reducers then get a random one.

    Raises:
        HostedError: a hosted reducer did not start, or a rank does not reach it, and there is no
            dedicated one; or the ranks' settings contradict each other.
        Also the errors of `Meeting.exchange`.
    """
    introductions = _introduce(meeting, rank, hosting, len(dedicated), key)
    first = introductions[0]  # all ranks use the settings of rank 0
    machines = find_machines(introductions)
    assignment = assign(machines, len(dedicated), first.dedicated_gbps)
    if rank == 0 and first.dedicated_gbps and not all(machine.gbps for machine in machines):
        logger.warning(
            "REDUCER_DEDICATED_GBPS has no effect, because the rate of the NIC of a worker is not "
            "known: set REDUCER_GBPS on every machine of workers"
        )
    # The program has named reducers, and on one machine a hosted one would take all their work.
    unneeded = first.wanted == "auto" and dedicated and len(machines) == 1
    if unneeded or not assignment.hosts:
        return Reducers(tuple(dedicated))
    key = key or bytes.fromhex(first.key)
    own: HostedReducer | None = None
    record: Record = {}
    try:
        if any(host.ranks[0] == rank for host in assignment.hosts):
            try:
                own = _make(rank, machines, hosting, key, len(introductions))
                record = {"address": own.start()}
            except (OSError, RuntimeError, NotStartedError) as error:  # the others must hear of it
                record = {"error": f"on {machine_name()} (rank {rank}): {error}"}
        addresses = _gather_addresses(meeting, assignment.hosts, record)
        _check_reach(meeting, addresses)
    except BaseException as error:
        if own is not None:
            own.stop()
        if not isinstance(error, HostedError) or not dedicated:
            raise
        if rank == 0:
            logger.warning("only the %d dedicated reducers: %s", len(dedicated), error)
        return Reducers(tuple(dedicated))
    if rank == 0:
        join_logger.info("%s", assignment.describe())
    return Reducers(
        (*(dedicated[number] for number in assignment.dedicated), *addresses),
        assignment.weights,
        tuple(host.ranks for host in assignment.hosts),
        key,
        own,
    )


def machine_name() -> str:
    """The name of this machine, for messages."""
    return os.uname().nodename


def _introduce(
    meeting: Meeting, rank: int, hosting: Hosting, dedicated: int, key: bytes
) -> list[Introduction]:
    """Raises DisagreementError if a setting of a rank is of no use, here or beside rank 0's."""
    address = error = ""
    try:
        address = own_address(hosting.interface, hosting.toward)
    except ValueError as problem:  # the others must not wait for this rank
        error = str(problem)
    interface = nic.interface_of(address) if address else ""
    mine = Introduction(
        machine=machine_id().hex(),
        address=address,
        gbps=hosting.gbps or (nic.gbps_of(interface) if interface else 0.0),
        dedicated=dedicated,
        error=error,
        key="" if key or rank else secrets.token_hex(_KEY_BYTES),
        wanted=hosting.wanted,
        dedicated_gbps=hosting.dedicated_gbps,
    )
    records = meeting.exchange("ranks", mine.as_record())
    try:
        found = [Introduction(**record) for record in records]
    except TypeError as problem:
        raise DisagreementError(
            f"the ranks run different releases: install the same on all machines ({problem})"
        ) from None
    for other, one in enumerate(found):
        if one.error:
            raise DisagreementError(f"rank {other}: {one.error}")
        if one.dedicated != found[0].dedicated:
            raise DisagreementError(
                f"rank {other} has {one.dedicated} dedicated reducers, rank 0 has "
                f"{found[0].dedicated}: give all ranks the same addresses (REDUCER_ADDRS)"
            )
    return found


def _make(
    rank: int, machines: Sequence[Machine], hosting: Hosting, key: bytes, world_size: int
) -> HostedReducer:
    lanes = lanes_beside_workers()
    options = [
        *("--lanes", str(lanes)),
        *("--memory", str(memory_beside_workers(world_size, lanes))),
        *("--congestion", hosting.congestion),
    ]
    host = _address_to_serve(rank, machines)
    return HostedReducer(host, hosting.ports, key, options, hosting.environment)


def _address_to_serve(rank: int, machines: Sequence[Machine]) -> str:
    """The address that the workers of all machines can reach.

    Raises OSError if there is no such address. A host name that its own machine resolves to
    loopback gives a loopback address there: then the route to another machine decides.
    """
    if len(machines) == 1:
        return _LOOPBACK
    own = next(machine.address for machine in machines if machine.ranks[0] == rank)
    others = [machine.address for machine in machines if not _is_local(machine.address)]
    if _is_local(own) and others:
        own = nic.address_toward(others[0])
    if _is_local(own):
        raise OSError(
            "found no address of this machine that the other machines could reach: set "
            "REDUCER_SOCKET_IFNAME to the name of the network interface"
        )
    return own


def _is_local(address: str) -> bool:
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _gather_addresses(meeting: Meeting, hosts: Sequence[Machine], record: Record) -> list[str]:
    records = meeting.exchange("hosted", record)
    records = [records[host.ranks[0]] for host in hosts]
    for found in records:
        if "error" in found:
            raise NotStartedError(f"the hosted reducer did not start {found['error']}")
    return [found["address"] for found in records]


def _check_reach(meeting: Meeting, addresses: Sequence[str]) -> None:
    """Test all hosted reducers from all ranks."""
    missing = find_unreachable(addresses, _REACH_SECONDS)
    records = meeting.exchange("reach", {"machine": machine_name(), "missing": missing})
    for rank, found in enumerate(records):
        for address, why in found["missing"].items():
            text = (
                f"rank {rank} on {found['machine']} does not reach the hosted reducer at {address} "
                f"({why}): let the firewall pass this port (REDUCER_HOSTED_PORTS=FIRST-LAST chooses"
                " one), or name the interface that all machines share (REDUCER_SOCKET_IFNAME)"
            )
            raise NotReachedError(text)
