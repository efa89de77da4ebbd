"""The doctor's advice about receive queues, RPS and RFS, on made-up trees of /sys and /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reducer_tools.doctor import host, receive
from reducer_tools.doctor.diagnosis import Diagnosis
from reducer_tools.doctor.reach import Reach
from reducer_tools.doctor.receive import Receiving, advise, format_mask, read_list, read_mask
from reducer_tools.doctor.report import as_text

NONE: frozenset[int] = frozenset()
ONE_QUEUE = Receiving(1, frozenset({0}), NONE, False, False)
COMMANDS = (
    "as root:\nsysctl -w net.core.rps_sock_flow_entries=32768\n"
    "for q in /sys/class/net/eth7/queues/rx-*; do echo ffff > $q/rps_cpus; "
    "echo 32768 > $q/rps_flow_cnt; done"
)


def make_nic(
    root: Path,
    queues: int = 2,
    rps: str = "0",
    flows: int = 0,
    affinities: tuple[str, ...] = (),
    virtio: bool = False,
) -> None:
    """A NIC eth7 with these masks of RPS, and with interrupts 40, 41, ... on these cores."""
    interface, device = root / "sys/class/net/eth7", root / "sys/devices/pci/card"
    (device / "virtio0").mkdir(parents=True)
    for number in range(queues):
        queue = interface / f"queues/rx-{number}"
        queue.mkdir(parents=True)
        (queue / "rps_cpus").write_text(rps + "\n")
        (queue / "rps_flow_cnt").write_text(f"{flows}\n")
    (interface / "device").symlink_to(device / "virtio0" if virtio else device)
    (device / "msi_irqs").mkdir()
    for irq, cores in enumerate(affinities, 40):
        (device / f"msi_irqs/{irq}").write_text("msix\n")
        (root / f"proc/irq/{irq}").mkdir(parents=True)
        (root / f"proc/irq/{irq}/effective_affinity_list").write_text(cores + "\n")


def read(root: Path) -> Receiving | None:
    return receive.read("eth7", root / "sys", root / "proc")


@pytest.mark.parametrize("virtio", [False, True])
def test_queues_and_interrupts_are_read(tmp_path: Path, virtio: bool) -> None:
    make_nic(tmp_path, queues=3, affinities=("2", "4-5", "2"), virtio=virtio)
    assert read(tmp_path) == Receiving(3, frozenset({2, 4, 5}), NONE, False, False)
    assert str(read(tmp_path)) == "3 receive queues, interrupts on 3 cores, RPS off, RFS off"


def test_rps_and_rfs_are_read(tmp_path: Path) -> None:
    make_nic(tmp_path, queues=1, rps="00000001,0000000c", flows=4_096)
    assert read(tmp_path) == Receiving(1, NONE, frozenset({2, 3, 32}), False, False)
    core = tmp_path / "proc/sys/net/core"
    core.mkdir(parents=True)
    (core / "rps_sock_flow_entries").write_text("32768\n")
    found = read(tmp_path)
    assert found is not None and found.rfs
    assert str(found) == "1 receive queue, RPS on 3 cores, RFS on"


def test_an_older_kernel_has_only_the_configured_affinity(tmp_path: Path) -> None:
    make_nic(tmp_path, affinities=("",))
    (tmp_path / "proc/irq/40/smp_affinity_list").write_text("0-3\n")
    found = read(tmp_path)
    assert found is not None and found.interrupted == {0, 1, 2, 3} and found.cores == 2


def test_loopback_and_virtual_interfaces_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/eth7/queues/rx-0").mkdir(parents=True)
    assert read(tmp_path) is None
    assert receive.read("lo") is receive.read("no-such-nic") is None


def test_one_queue_of_a_fast_nic_is_too_few() -> None:
    found = advise("eth7", 25e9, ONE_QUEUE, 16, range(16))
    assert found is not None
    assert (found.level, found.code, found.subject) == ("warning", "receive-cores", "this host")
    assert found.text.startswith(
        "1 core at most can receive the packets of eth7, at 25 Gbit/s (1 receive queue, interrupts "
        "on 1 core, RPS off, RFS off); expected 4: one for each 8 Gbit/s"
    )
    assert "(ethtool -L eth7 combined 4)" in found.text and COMMANDS in found.text


def test_the_doctor_prints_the_advice_with_whole_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "read", lambda name: ONE_QUEUE)
    monkeypatch.setattr(host, "read_nic", lambda name: host.Nic(name, 25e9, 9_000))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    here = host.examine(["eth7"], 16, None)
    assert here.facts["NIC eth7"] == f"25 Gbit/s, MTU 9000, {ONE_QUEUE}"
    found = Diagnosis(here, [Reach("a:1", lanes=16)], findings=here.findings)
    shown = as_text(found).splitlines()
    assert all(f"    {command}" in shown for command in COMMANDS.splitlines()[1:])


def test_interrupts_of_all_queues_on_one_core_are_too_few() -> None:
    found = advise("eth7", 100e9, Receiving(16, frozenset({3}), NONE, False, False), 64, range(64))
    assert found is not None
    assert "16 receive queues, interrupts on 1 core" in found.text and "expected 13" in found.text
    assert "Spread its interrupts" in found.text and "ethtool" not in found.text
    assert "echo ffffffff,ffffffff > $q/rps_cpus; echo 2048 > $q/rps_flow_cnt" in found.text


@pytest.mark.parametrize(
    ("rate", "queues", "connections", "cores", "rps", "expected"),
    [
        (None, 1, 16, 16, NONE, False),  # virtual NICs do not say their rate
        (9e9, 1, 16, 16, NONE, False),
        (10e9, 1, 16, 16, NONE, True),  # 10 / 8: 2 cores
        (10e9, 2, 16, 16, NONE, False),
        (25e9, 3, 16, 16, NONE, True),  # 25 / 8: 4 cores
        (25e9, 4, 16, 16, NONE, False),
        (25e9, 3, 3, 16, NONE, False),  # 3 connections use at most 3 queues
        (25e9, 3, 16, 3, NONE, False),
        (25e9, 1, 0, 16, NONE, False),  # no reducer answers
        (25e9, 1, 16, 16, frozenset({1}), False),
    ],
)
def test_when_advice_is_given(
    rate: float | None,
    queues: int,
    connections: int,
    cores: int,
    rps: frozenset[int],
    expected: bool,
) -> None:
    found = Receiving(queues, NONE, rps, False, False)
    assert (advise("eth7", rate, found, connections, range(cores)) is not None) == expected


def test_masks_and_lists_of_cores() -> None:
    assert read_mask("") == read_mask("00000000,00000000") == read_list("") == NONE
    assert read_list("0-2,8") == {0, 1, 2, 8}
    for cores in ({0}, {31}, {32}, {0, 63, 64}):
        assert read_mask(format_mask(cores)) == cores
    assert format_mask(range(4, 40)) == "ff,fffffff0"
