"""The doctor's conclusions from measurements."""

from __future__ import annotations

import socket

from reducer import __version__
from reducer_tools.doctor import host
from reducer_tools.doctor.diagnosis import Diagnosis, comparisons
from reducer_tools.doctor.host import Host, Nic
from reducer_tools.doctor.reach import Reach

NIC = Nic("eth7", 10e9, 9_000)


def codes(*reducers: Reach, nics: tuple[Nic, ...] = (), rate: float | None = None) -> list[str]:
    diagnosis = Diagnosis(Host("here", nics=list(nics)), list(reducers), rate)
    return [f"{finding.code} {finding.subject}" for finding in comparisons(diagnosis)]


def test_releases_clocks_and_kernels() -> None:
    same = Reach("a:1", version=__version__, kernels="native", clock_ahead=0.1)
    other = Reach("b:1", version="0.0.9", kernels="numpy", clock_ahead=-3.0)
    assert codes(same) == []
    assert codes(same, other) == ["version-skew b:1", "slow-kernels b:1", "clock b:1"]


def test_a_reducer_that_is_slower_than_the_others_is_named() -> None:
    reducers = [
        Reach(f"{name}:1", rate=rate) for name, rate in zip("abc", (9e9, 8e9, 3e9), strict=True)
    ]
    assert codes(*reducers) == ["slow-reducer c:1"]
    assert codes(*reducers[:2]) == []


def test_a_network_that_does_not_fill_the_nic_is_named() -> None:
    assert codes(Reach("a:1", rate=4e9), nics=(NIC,)) == ["slow-network this host"]
    assert codes(Reach("a:1", rate=4e9), nics=(NIC,), rate=9e9) == []
    assert codes(Reach("a:1", rate=4e9), nics=(Nic("lo", None, 65_536),)) == []


def test_buffers_are_held_against_rate_and_round_trip() -> None:
    looked = Host("here", nics=[Nic("eth7", 100e9, 9_000)])
    host.check_buffers(looked, 0.000_01)
    assert looked.findings == []
    host.check_buffers(looked, 10.0)  # no kernel allows 250 GB
    assert {finding.code for finding in looked.findings} == {"small-buffers"}
    assert "the maximum of net.ipv4.tcp_rmem is" in looked.findings[0].text


def test_the_rate_of_an_interface() -> None:
    found = host.read_nic("lo")
    assert found is not None and found.rate is None and found.mtu >= 1_500
    assert host.read_nic("no-such-nic") is None
    for _, name in socket.if_nameindex():
        assert host.read_nic(name) is not None


def test_packets_that_do_not_fit_are_named() -> None:
    narrow = Reach("a:1", interface="eth7", path_mtu=1_500)
    assert codes(narrow, nics=(NIC,)) == ["path-mtu a:1"]
    assert codes(Reach("b:1", interface="eth7", path_mtu=9_000), nics=(NIC,)) == []
    loopback = Reach("c:1", interface="lo", path_mtu=65_535)
    assert codes(loopback, nics=(Nic("lo", None, 65_536),)) == []
