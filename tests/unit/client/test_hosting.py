"""The settings of hosted reducers, where the ranks meet, and how the shares are chosen."""

from __future__ import annotations

import socket

import pytest

from reducer_client import joining
from reducer_client.config import JobSettings
from reducer_client.config import hosting as hosting_config
from reducer_client.hosted.assignment import Introduction, assign, find_machines
from reducer_client.hosted.failures import DisagreementError
from reducer_client.hosted.forming import form
from reducer_client.hosted.hosted_reducer import free_port
from reducer_client.hosted.hosting import Hosted
from reducer_client.hosted.limits import lanes_beside_workers, memory_beside_workers
from reducer_client.hosted.machine import own_address
from reducer_client.hosted.meeting import Record
from reducer_client.hosted.reach import find_unreachable
from reducer_client.hosted.reducers import Reducers
from tests.support.ports import free_ports

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_the_argument_counts_before_the_variable_and_auto_is_the_default() -> None:
    assert hosting_config.resolve_hosting(environ={}).wanted == "auto"
    assert hosting_config.resolve_hosting(environ={"REDUCER_HOSTED": "1"}).wanted is True
    assert hosting_config.resolve_hosting(environ={"REDUCER_HOSTED": "False"}).wanted is False
    assert (
        hosting_config.resolve_hosting(
            JobSettings(hosted=True), environ={"REDUCER_HOSTED": "0"}
        ).wanted
        is True
    )


def test_all_settings_come_from_the_environment() -> None:
    env = MASTER | {
        "REDUCER_SOCKET_IFNAME": "eth1",
        "REDUCER_HOSTED_PORTS": "4000-4010",
        "REDUCER_GBPS": "100",
        "REDUCER_DEDICATED_GBPS": "32, 16",
    }
    found = hosting_config.resolve_hosting(environ=env)
    assert (found.interface, found.toward, found.ports) == ("eth1", "node0", (4000, 4010))
    assert (found.gbps, found.dedicated_gbps) == (100.0, (32.0, 16.0))


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("REDUCER_HOSTED", "maybe", "expected auto, 1 or 0"),
        ("REDUCER_HOSTED_PORTS", "9-5", "expected a port or FIRST-LAST"),
        ("REDUCER_HOSTED_PORTS", "x", "expected a port or FIRST-LAST"),
        ("REDUCER_HOSTED_PORTS", "1-70000", "expected a port or FIRST-LAST"),
        ("REDUCER_GBPS", "fast", "expected Gbit/s above 0"),
        ("REDUCER_GBPS", "-1", "expected Gbit/s above 0"),
        ("REDUCER_GBPS", "1,2", "expected one rate"),
        ("REDUCER_DEDICATED_GBPS", "1,inf", "expected Gbit/s above 0"),
    ],
)
def test_bad_values_are_named(variable: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        hosting_config.resolve_hosting(environ={variable: value})
    assert variable in str(caught.value)
    assert value in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "dedicated", "world_size", "several", "tls", "meets"),
    [
        ("auto", 0, 2, False, False, True),  # nothing is configured
        ("auto", 1, 4, True, False, True),
        ("auto", 4, 4, True, False, False),  # enough dedicated reducers
        ("auto", 1, 4, False, False, False),  # all on one machine, as far as the launcher says
        ("auto", 1, 4, True, True, False),  # would add connections without encryption
        (True, 4, 4, False, True, True),
        (False, 0, 4, True, False, False),
    ],
)
def test_when_the_ranks_meet(
    wanted: Hosted, dedicated: int, world_size: int, several: bool, tls: bool, meets: bool
) -> None:
    hosting = hosting_config.resolve_hosting(JobSettings(hosted=wanted), environ={})
    found = hosting_config.needs_meeting(
        hosting, dedicated, world_size, several_machines=several, tls=tls
    )
    assert found is meets


def test_certificates_without_reducers_need_consent() -> None:
    hosting = hosting_config.resolve_hosting(JobSettings(hosted="auto"), environ={})
    with pytest.raises(ValueError, match="do not encrypt; hosted=True or REDUCER_HOSTED=1 accepts"):
        hosting_config.needs_meeting(hosting, 0, 2, several_machines=True, tls=True)


def test_weights_are_for_dedicated_reducers_only() -> None:
    assert (
        hosting_config.resolve_hosting(JobSettings(hosted="auto"), environ={})
        .with_weights_given()
        .wanted
        is False
    )
    with pytest.raises(ValueError, match="weights and hosted=True: expected one of them"):
        hosting_config.resolve_hosting(JobSettings(hosted=True), environ={}).with_weights_given()


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"REDUCER_MEETING": "m", **MASTER}, "m:2222"),
        (MASTER, "node0:28500"),
        ({**MASTER, "MASTER_PORT": "1500"}, "node0:2500"),
        ({"REDUCER_JOB": "resnet"}, "127.0.0.1:11771"),
        ({"PMIX_NAMESPACE": "prte-1"}, "127.0.0.1:25384"),
        ({"MASTER_ADDR": "fd00::1"}, "[fd00::1]:2224"),
        ({}, "127.0.0.1:2224"),
    ],
)
def test_where_the_ranks_meet(env: dict[str, str], place: str) -> None:
    assert hosting_config.find_meeting(True, env) == place


def test_ranks_on_several_machines_need_a_place_to_meet() -> None:
    with pytest.raises(ValueError, match="set MASTER_ADDR to the host of rank 0, or REDUCER_MEET"):
        hosting_config.find_meeting(False, {})


def ranks(*machines: str, gbps: float = 0.0) -> list[Introduction]:
    return [Introduction(name, f"10.0.0.{name[1:]}", gbps) for name in machines]


def test_the_first_rank_of_a_machine_hosts() -> None:
    machines = find_machines(ranks("m1", "m1", "m2", "m2"))
    assert [machine.ranks for machine in machines] == [(0, 1), (2, 3)]
    assert [machine.address for machine in machines] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("dedicated", "weights", "time"),
    [
        (0, (1, 1, 1, 1), 1.5),
        (1, (1, 1, 1, 1, 1), 4 / 3),  # each takes 2(n-1)/(n^2+kn-2k) or (n-k)/(...): 6/18 and 3/18
        (2, (3, 3, 2, 2, 2, 2), 1.2),
        (4, (1, 1, 1, 1), 1.0),
    ],
)
def test_shares_for_equal_nics(dedicated: int, weights: tuple[int, ...], time: float) -> None:
    found = assign(find_machines(ranks("m1", "m2", "m3", "m4")), dedicated, ())
    assert found.time == pytest.approx(time)
    if dedicated != 1:
        assert found.weights[:2] == weights[:2]
    assert len(found.hosts) == (0 if dedicated == 4 else 4)


def test_shares_follow_the_rates_and_unknown_rates_count_as_equal() -> None:
    machines = find_machines(ranks("m1", "m2", "m3", "m4", gbps=100))
    slow = assign(machines, 2, (50,))
    assert slow.time == pytest.approx(4 / 3)  # as one reducer of 100
    unknown = find_machines(ranks("m1", "m2", "m3") + ranks("m4", gbps=100))
    assert (
        assign(unknown, 2, (50,)).time
        == assign(find_machines(ranks("m1", "m2", "m3", "m4")), 2, ()).time
    )


def test_one_machine_hosts_all_and_says_so() -> None:
    found = assign(find_machines(ranks("m1", "m1")), 0, ())
    assert (found.weights, len(found.hosts), found.time) == ((1,), 1, 0.0)
    assert "one machine" in found.describe()


def test_two_machines_and_one_reducer_share_the_work() -> None:
    """A single dedicated reducer needs twice the time; hosted ones take the rest."""
    found = assign(find_machines(ranks("m1", "m2")), 1, ())
    assert (found.time, found.time_without) == (1.0, 2.0)
    assert found.weights == (2, 1, 1)


def test_the_line_for_the_log_says_what_one_more_reducer_gains() -> None:
    found = assign(find_machines(ranks("m1", "m2", "m3", "m4")), 1, ())
    assert found.describe() == (
        "4 machines: 1 dedicated and 4 hosted reducers; network time 1.33 x (size / NIC rate), "
        "without hosted ones 4.00 x; with one more dedicated reducer 1.20 x"
    )


def test_a_reducer_with_more_than_512_others_gets_an_equal_share() -> None:
    machines = find_machines([Introduction(f"{n}", "10.0.0.1", 0.0) for n in range(513)])
    assert set(assign(machines, 1, ()).weights) == {1}


def test_a_port_is_taken_from_the_range() -> None:
    assert free_port("127.0.0.1", 0, 0) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        assert first < free_port("127.0.0.1", first, first + 50) < first + 50
        assert free_port("127.0.0.1", first, first) == first  # the daemon will say why


def test_a_hosted_reducer_gets_no_options_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("REDUCER_PORT", "REDUCER_KEY_FILE", "REDUCER_KERNELS"):
        monkeypatch.setenv(variable, "numpy")
    found = hosting_config.hosted_environment()
    assert {name for name in found if name.startswith("REDUCER_")} == {"REDUCER_KERNELS"}
    assert found["PYTHONSAFEPATH"] == "1"
    assert "REDUCER_KEY_FILE" in hosting_config.daemon_environment()


class Alone:
    """A meeting of one rank, which may say something else than it should."""

    def __init__(self, **other: object) -> None:
        self._other = other

    def exchange(self, name: str, record: Record) -> list[Record]:
        return [record | self._other]


def test_programs_that_name_reducers_get_no_hosted_one_on_one_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosting = hosting_config.resolve_hosting(
        environ={"REDUCER_DEDICATED_GBPS": "32", "REDUCER_SOCKET_IFNAME": "lo"}
    )
    found = form(Alone(), 0, hosting, ("r:2222",), key=b"")
    assert found == Reducers(("r:2222",))
    assert "REDUCER_DEDICATED_GBPS has no effect" in caplog.text


def test_a_rank_of_another_release_is_told() -> None:
    hosting = hosting_config.resolve_hosting(environ={"REDUCER_SOCKET_IFNAME": "lo"})
    with pytest.raises(DisagreementError, match="the ranks run different releases"):
        form(Alone(news=1), 0, hosting, ("r:2222",), key=b"")


def test_flat_ranks_of_one_machine_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    joining._warn_of_flat_ranks(Reducers(("a", "b"), (), ((0,), (1,))))
    joining._warn_of_flat_ranks(Reducers(("a",), (), ((0, 1),)))
    assert not caplog.text
    joining._warn_of_flat_ranks(Reducers(("a", "b"), (), ((0, 1), (2, 3))))
    assert "2 ranks share a machine" in caplog.text


def test_unreachable_addresses_are_named() -> None:
    (port,) = free_ports(1)
    assert find_unreachable([f"127.0.0.1:{port}"], 1.0) == {
        f"127.0.0.1:{port}": "Connection refused"
    }


def test_the_interface_names_the_address() -> None:
    assert own_address("lo", "") == "127.0.0.1"
    assert own_address("", "127.0.0.1") == "127.0.0.1"
    assert own_address("", "no-such-host.invalid") == ""
    with pytest.raises(ValueError, match="REDUCER_SOCKET_IFNAME='nope0': this interface has no"):
        own_address("nope0", "")


def test_a_hosted_reducer_takes_a_part_of_the_machine() -> None:
    assert 1 <= lanes_beside_workers() <= 8
    assert memory_beside_workers(4, 1) <= memory_beside_workers(64, 4)
