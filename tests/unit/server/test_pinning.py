"""Which core each lane gets, and what /sys tells about the cores."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reducer.server.pinning import Core, choose_cores
from reducer.server.topology import nic_node, read_cores

# Two sockets of two physical cores, each with two threads: 0 and 4 are one physical core.
TWO_NODES = [Core(number, f"{number % 4},{number % 4 + 4}", number % 4 // 2) for number in range(8)]


def test_lanes_get_physical_cores_first_and_the_node_of_the_nic_before_the_other() -> None:
    assert choose_cores(TWO_NODES, 8, 0) == [1, 0, 3, 2, 5, 4, 7, 6]
    assert choose_cores(TWO_NODES, 8, 1) == [3, 2, 1, 0, 7, 6, 5, 4]


def test_without_the_node_of_the_nic_high_numbers_come_first() -> None:
    assert choose_cores(TWO_NODES, 6, None) == [3, 2, 1, 0, 7, 6]
    assert choose_cores([Core(number, str(number), None) for number in (2, 9)], 1, None) == [9]


def test_a_second_thread_whose_first_is_not_allowed_is_a_physical_core() -> None:
    allowed = [core for core in TWO_NODES if core.number in (1, 4, 5)]
    assert choose_cores(allowed, 2, 0) == [4, 1]


@given(st.sets(st.integers(0, 7), min_size=1), st.sampled_from([None, 0, 1]), st.data())
def test_every_lane_has_an_allowed_core_of_its_own(
    allowed: set[int], node: int | None, data: st.DataObject
) -> None:
    lanes = data.draw(st.integers(1, len(allowed)))
    cores = [core for core in TWO_NODES if core.number in allowed]
    chosen = choose_cores(cores, lanes, node)
    assert len(set(chosen)) == lanes and set(chosen) <= allowed
    physical = {core.physical for core in cores}
    used = {core.physical for core in cores if core.number in chosen}
    assert len(used) == min(lanes, len(physical))


def test_cores_are_read_from_sys(tmp_path: Path) -> None:
    for number in range(4):
        core = tmp_path / f"devices/system/cpu/cpu{number}"
        (core / "topology").mkdir(parents=True)
        (core / "topology/thread_siblings_list").write_text(f"{number % 2},{number % 2 + 2}\n")
        (core / f"node{number % 2}").mkdir()
    found = read_cores([0, 3], tmp_path)
    assert found == [Core(0, "0,2", 0), Core(3, "1,3", 1)]
    assert read_cores([7], tmp_path) == [Core(7, "7", None)], "a container may hide /sys"


def test_the_node_of_a_nic_is_read_from_sys(tmp_path: Path) -> None:
    for interface, node in (("eth0", "1"), ("virtual", "-1")):
        device = tmp_path / "class/net" / interface / "device"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(node + "\n")
    assert nic_node("eth0", tmp_path) == 1
    assert nic_node("virtual", tmp_path) is nic_node("lo", tmp_path) is nic_node("", tmp_path)
    assert nic_node("lo", tmp_path) is None
