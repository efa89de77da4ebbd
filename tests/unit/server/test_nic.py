"""The interface of an address, and of a daemon's --host."""

from __future__ import annotations

import pytest

from reducer import nic

ROUTES = """\
Iface Destination Gateway  Flags RefCnt Use Metric Mask     MTU Window IRTT
eth1  00000000    0102000A 0003  0      0   100    00000000 0   0      0
eth0  00000000    0102000A 0003  0      0   20     00000000 0   0      0
tun0  00000000    00000000 0001  0      0   0      00000080 0   0      0
eth2  0002000A    00000000 0001  0      0   0      00FFFFFF 0   0      0
""".splitlines()


def test_the_interface_of_an_address() -> None:
    assert nic.interface_of("127.0.0.1") == nic.interface_of("::1") == "lo"
    assert nic.interface_of("192.0.2.1") == ""


def test_the_default_route_is_the_one_to_everywhere_with_the_least_metric() -> None:
    assert nic.default_interface(ROUTES) == "eth0"
    assert nic.default_interface(ROUTES[:2]) == "eth1"
    assert nic.default_interface(ROUTES[:1]) == nic.default_interface([]) == ""


def test_a_daemon_serves_the_interface_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nic, "_lines", lambda path: ROUTES)
    for host, interface in (("127.0.0.1", "lo"), ("0.0.0.0", "eth0"), ("::", "eth0")):
        assert nic.interface_to_serve(host) == interface
    assert nic.interface_to_serve("no-such-host.invalid") == ""
