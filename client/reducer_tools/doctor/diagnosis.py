"""The diagnosis: examines all reducers and the host, then compares them with each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from reducer import __version__
from reducer_client.errors import ReducerError
from reducer_tools.doctor import host, reach
from reducer_tools.doctor.findings import HERE, Finding, fault, warning
from reducer_tools.doctor.host import Host
from reducer_tools.doctor.reach import Login, Reach

_MAX_AT_ONCE = 16
# Limit for all bandwidth probes together, so that a large pool does not take long.
_PROBE_SECONDS = 10.0
# With a larger difference of clocks, log lines of two hosts cannot be ordered.
_MOST_CLOCK_SECONDS = 0.5
_MAX_PACKET = 65_535  # bytes of an IP packet
_SLOW = 0.5  # fraction of the other reducers' rate, or of the NIC's rate


@dataclass
class Diagnosis:
    """The result of `diagnose`.

    ``rate``: of all reducers together, in bits per second, each way; None if it was not measured.
    """

    host: Host
    reducers: list[Reach]
    rate: float | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def down(self) -> list[Reach]:
        """The reducers that a worker of this host cannot use."""
        return [one for one in self.reducers if one.fault is not None]

    @property
    def healthy(self) -> bool:
        return not any(finding.level == "fault" for finding in self.findings)


def diagnose(addresses: Sequence[str], login: Login, probe_seconds: float) -> Diagnosis:
    """Examine all reducers and the host, with ``probe_seconds`` of traffic for each reducer.

    0 seconds means no traffic.
    """
    with ThreadPoolExecutor(min(len(addresses), _MAX_AT_ONCE)) as pool:
        found = list(pool.map(lambda each: reach.examine(each, login), addresses))
    usable = [one for one in found if one.fault is None]
    trips = [one.round_trip for one in usable if one.round_trip is not None]
    here = host.examine(
        (one.interface for one in found if one.interface),
        sum(one.lanes or 0 for one in usable),
        max(trips, default=None),
    )
    diagnosis = Diagnosis(here, found)
    diagnosis.findings += [one.fault for one in found if one.fault is not None]
    twins = list(_twins(usable))
    diagnosis.findings += twins
    if usable and not twins:
        _join_all(diagnosis, usable, login, probe_seconds)
    diagnosis.findings += here.findings
    diagnosis.findings += comparisons(diagnosis)
    return diagnosis


def _twins(usable: Sequence[Reach]) -> Iterator[Finding]:
    """Faults for addresses of the same reducer, which cannot have two slots of a job."""
    names: dict[tuple[str, str], str] = {}
    for one in usable:
        place = one.ip, one.address.rpartition(":")[2]
        other = names.setdefault(place, one.address)
        if other != one.address:
            text = f"this is the same reducer as {other} ({one.ip}): name each reducer once"
            yield fault("same-reducer", one.address, text)


def _join_all(
    diagnosis: Diagnosis, usable: Sequence[Reach], login: Login, probe_seconds: float
) -> None:
    """Measure the rate of each reducer alone, then of all together.

    Only one measurement runs at a time, because all share this host's NIC.
    """
    seconds = min(probe_seconds, _PROBE_SECONDS / len(usable))
    addresses = [one.address for one in usable]
    try:
        if seconds > 0:
            for one in usable:
                addresses = [one.address]
                one.rate = reach.measure_rate(addresses, login, seconds)
        if len(usable) > 1:
            addresses = [one.address for one in usable]
            rate = reach.measure_rate(addresses, login, seconds)
            diagnosis.rate = rate or None
    except ReducerError as error:
        diagnosis.findings.append(reach.explain(error, login, addresses))


def comparisons(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Warnings that follow from comparing the reducers with each other and with this host."""
    for one in diagnosis.reducers:
        yield from _versions(one)
        yield from _clock(one)
        yield from _path(diagnosis.host, one)
    yield from _rates(diagnosis)


def _versions(one: Reach) -> Iterator[Finding]:
    if one.version is not None and one.version != __version__:
        text = (
            f"the reducer runs release {one.version}, this host {__version__}: both speak the same "
            "protocol, but install the same release on both"
        )
        yield warning("version-skew", one.address, text)
    if one.kernels is not None and one.kernels != "native":
        text = (
            f"the reducer uses the {one.kernels} kernels, which sum 16-bit types up to 100 times "
            "slower than the native kernels: install it again without REDUCER_NO_NATIVE, with a "
            "C++17 compiler"
        )
        yield warning("slow-kernels", one.address, text)


def _clock(one: Reach) -> Iterator[Finding]:
    if one.clock_ahead is not None and abs(one.clock_ahead) > _MOST_CLOCK_SECONDS:
        text = (
            f"the reducer's clock is {one.clock_ahead:+.1f} s from ours: sums are not affected, "
            "but times in logs and timelines do not match; let NTP set both clocks"
        )
        yield warning("clock", one.address, text)


def _path(here: Host, one: Reach) -> Iterator[Finding]:
    nic = next((nic for nic in here.nics if nic.name == one.interface), None)
    if nic is None or one.path_mtu is None:
        return
    if one.path_mtu < min(nic.mtu, _MAX_PACKET):  # the MTU of loopback is one larger
        text = (
            f"the MTU of {nic.name} is {nic.mtu} bytes, but the path to the reducer passes only "
            f"{one.path_mtu}: set the same MTU on both ends and in the network "
            f"(ip link set {nic.name} mtu {one.path_mtu})"
        )
        yield warning("path-mtu", one.address, text)


def _rates(diagnosis: Diagnosis) -> Iterator[Finding]:
    measured = [(one.address, one.rate) for one in diagnosis.reducers if one.rate]
    if len(measured) > 1:
        usual = statistics.median_high(rate for _, rate in measured)
        for address, rate in measured:
            if rate < _SLOW * usual:
                text = (
                    f"{gigabits(rate)} from here, where the others give {gigabits(usual)}: every "
                    "round waits for this reducer. Look at its NIC, its load (`reducer status`) "
                    "and the network path"
                )
                yield warning("slow-reducer", address, text)
    best = max([rate for _, rate in measured] + [diagnosis.rate or 0.0], default=0.0)
    rates = [nic.rate for nic in diagnosis.host.nics if nic.rate is not None]
    if best and len(rates) == 1 == len(diagnosis.host.nics) and best < _SLOW * rates[0]:
        text = (
            f"{gigabits(best)} at most, but the NIC has {gigabits(rates[0])}: more reducers or "
            "lanes may fill the NIC (`reducer plan`), else look at the network"
        )
        yield warning("slow-network", HERE, text)


def gigabits(rate: float) -> str:
    """A rate in bits per second as text.

    >>> gigabits(9.414e9), gigabits(3.2e7)
    ('9.41 Gbit/s', '32 Mbit/s')
    """
    return f"{rate / 1e9:.2f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.0f} Mbit/s"
