"""All reducers and the host together: what only shows where they are compared."""

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
# Of all probes together: a large pool must not make the doctor slow.
_PROBE_SECONDS = 10.0
# Beyond that, lines of two hosts cannot be put in order.
_MOST_CLOCK_SECONDS = 0.5
_MAX_PACKET = 65_535  # of IP
_SLOW = 0.5  # of the other reducers' rate, or of the NIC's


@dataclass
class Diagnosis:
    """``rate``: of all reducers together, in bits a second, each way; None: not measured."""

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


def diagnose(
    addresses: Sequence[str], login: Login, metrics_port: int, probe_seconds: float
) -> Diagnosis:
    """Look at everything; ``probe_seconds`` of traffic for each reducer, 0: none."""
    with ThreadPoolExecutor(min(len(addresses), _MAX_AT_ONCE)) as pool:
        found = list(pool.map(lambda each: reach.examine(each, login, metrics_port), addresses))
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
    """One reducer cannot have two slots of a job."""
    names: dict[tuple[str, str], str] = {}
    for one in usable:
        place = one.ip, one.address.rpartition(":")[2]
        other = names.setdefault(place, one.address)
        if other != one.address:
            text = f"it is the same reducer as {other} ({one.ip}): name each reducer once"
            yield fault("same-reducer", one.address, text)


def _join_all(
    diagnosis: Diagnosis, usable: Sequence[Reach], login: Login, probe_seconds: float
) -> None:
    """One after the other, then together: they share our NIC."""
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
    for one in diagnosis.reducers:
        yield from _versions(one)
        yield from _clock(one)
        yield from _path(diagnosis.host, one)
    yield from _rates(diagnosis)


def _versions(one: Reach) -> Iterator[Finding]:
    if one.version is not None and one.version != __version__:
        text = (
            f"release {one.version} runs there, and {__version__} here: they speak one protocol, "
            "but install the same release on both"
        )
        yield warning("version-skew", one.address, text)
    if one.kernels is not None and one.kernels != "native":
        text = (
            f"it sums on the {one.kernels} kernels, 16-bit types up to 100 times slower than on "
            "native ones: install it again without REDUCER_NO_NATIVE, with a C++17 compiler"
        )
        yield warning("slow-kernels", one.address, text)


def _clock(one: Reach) -> Iterator[Finding]:
    if one.clock_ahead is not None and abs(one.clock_ahead) > _MOST_CLOCK_SECONDS:
        text = (
            f"its clock is {one.clock_ahead:+.1f} s from ours: sums do not care, but the times in "
            "logs and timelines do not fit together; let NTP set both"
        )
        yield warning("clock", one.address, text)


def _path(here: Host, one: Reach) -> Iterator[Finding]:
    nic = next((nic for nic in here.nics if nic.name == one.interface), None)
    if nic is None or one.path_mtu is None:
        return
    if one.path_mtu < min(nic.mtu, _MAX_PACKET):  # loopback has an MTU of one more
        text = (
            f"packets of {nic.mtu} bytes leave {nic.name}, and {one.path_mtu} pass on the way "
            "there: set the MTU of both ends and of the network to the same "
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
                    "round waits for it. Look at its NIC, its load (`reducer status`) and the way "
                    "there"
                )
                yield warning("slow-reducer", address, text)
    best = max([rate for _, rate in measured] + [diagnosis.rate or 0.0], default=0.0)
    rates = [nic.rate for nic in diagnosis.host.nics if nic.rate is not None]
    if best and len(rates) == 1 == len(diagnosis.host.nics) and best < _SLOW * rates[0]:
        text = (
            f"{gigabits(best)} at the most, and the NIC has {gigabits(rates[0])}: more reducers or "
            "lanes may fill it (`reducer plan`), else look at the network between"
        )
        yield warning("slow-network", HERE, text)


def gigabits(rate: float) -> str:
    """
    >>> gigabits(9.414e9), gigabits(3.2e7)
    ('9.41 Gbit/s', '32 Mbit/s')
    """
    return f"{rate / 1e9:.2f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.0f} Mbit/s"
