"""When the NCCL plugin is active, and what it reads from the environment."""

from __future__ import annotations

import os
import re

import pytest

from reducer_tools.nccl.tables import NcclError
from tests.support.cluster import ROOT
from tests.support.nccl_job import enter, values
from tests.support.nccl_tables import CollNet
from tests.support.plugin import NCCL_PLUGIN
from tests.support.ranks import start_ranks


def _declines(rank: int, world: int, settings: dict[str, str]) -> list[tuple[str, str]]:
    os.environ.update(settings)
    coll = CollNet(NCCL_PLUGIN, 8)
    with pytest.raises(NcclError):
        coll.init()
    return coll.lines


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        ({"REDUCER_ADDRS": "a:1"}, "INFO", "NCCL_COLLNET_ENABLE is not 1"),
        ({"NCCL_COLLNET_ENABLE": "1"}, "INFO", "none of REDUCER_ADDRS, CLUSTER_SPEC"),
        ({"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a:0"}, "WARN", "address 'a:0': port '0'"),
        ({"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a,a:2222"}, "WARN", "listed twice"),
        ({"NCCL_COLLNET_ENABLE": "1", "CLUSTER_SPEC": "{"}, "WARN", "CLUSTER_SPEC: "),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_WAIT": "soon"},
            "WARN",
            "REDUCER_WAIT='soon': expected seconds",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_CHUNK_BYTES": "65537"},
            "WARN",
            "REDUCER_CHUNK_BYTES='65537': expected an integer, 4096 to 4194304, a multiple of 64",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_NET_THREADS": "17"},
            "WARN",
            "REDUCER_NET_THREADS='17': expected auto or an integer, 0 to 16",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_WIRE_DTYPE": "int4"},
            "WARN",
            "REDUCER_WIRE_DTYPE='int4': expected one of float32, float16, bfloat16, int8, float8_",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_WEIGHTS": "3,,1"},
            "WARN",
            "REDUCER_WEIGHTS='3,,1': expected numbers such as 3,3,1",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "REDUCER_TLS_CA": "ca.pem"},
            "WARN",
            "the plugin has no mode tls: expected REDUCER_TLS_CA to be unset",
        ),
        (
            {"NCCL_COLLNET_ENABLE": "1", "REDUCER_ADDRS": "a", "NCCL_SOCKET_IFNAME": "nosuch"},
            "WARN",
            "no interface is up (NCCL_SOCKET_IFNAME)",
        ),
    ],
)
def test_it_is_inert_unless_it_is_wanted_and_says_why(
    settings: dict[str, str], level: str, text: str
) -> None:
    with start_ranks(1, _declines, settings) as ranks:
        ((found_level, line),) = values(ranks.collect(30))[0]
    assert (found_level, text in line) == (level, True), line


def _interfaces(rank: int, world: int, wish: str) -> set[str]:
    enter(["a"], NCCL_SOCKET_IFNAME=wish)
    coll = CollNet(NCCL_PLUGIN, 8)
    coll.init()
    return {device["name"].decode() for device in coll.devices()}


def test_interfaces_are_chosen_as_nccl_chooses_them() -> None:
    """By prefix; by whole name after "="; excluded after "^"."""
    wishes = ("lo", "l", "=lo", "nosuch,lo", "^nosuch", "^=l")
    found = {}
    for wish in wishes:
        with start_ranks(1, _interfaces, wish) as ranks:
            (found[wish],) = values(ranks.collect(30))
    assert [found[wish] for wish in ("lo", "=lo", "nosuch,lo")] == [{"lo"}] * 3
    assert "lo" in found["l"] & found["^nosuch"] & found["^=l"]
    for wish in ("=l", "^l", "=nosuch"):
        with start_ranks(1, _interfaces, wish) as ranks:
            (outcome,) = ranks.collect(30)
        assert isinstance(outcome.error, NcclError) or "lo" not in outcome.value


def _all_lines(rank: int, world: int) -> list[str]:
    os.environ.pop("REDUCER_IO_THREADS", None)  # else its value, not its default, is printed
    enter(["a"])
    coll = CollNet(NCCL_PLUGIN, 8)
    coll.init()
    return [text for _, text in coll.lines]


def test_the_readme_has_every_parameter_as_the_plugin_prints_it() -> None:
    with start_ranks(1, _all_lines) as ranks:
        _, *lines = values(ranks.collect(30))[0]
    text = (ROOT / "nccl_plugin" / "README.md").read_text()
    rows = re.findall(r"^\| `(REDUCER_\w+)` \| (.*?) ?\| (.*) \|$", text, re.M)
    assert [f"{name}={default} ({help_})" for name, default, help_ in rows] == [
        line.partition(" : ")[2] for line in lines
    ]


def _finds(rank: int, world: int, settings: dict[str, str]) -> str:
    os.environ.update({"NCCL_COLLNET_ENABLE": "1", **settings})
    coll = CollNet(NCCL_PLUGIN, 8)
    coll.init()
    return coll.lines[0][1]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"REDUCER_ADDRS": " a , [::1]:7,b:1"}, "REDUCER_ADDRS: reducers at a:2222,[::1]:7,b:1"),
        (
            {"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["w:1"], "workerpool2": ["r:1", "s"]}}'},
            "CLUSTER_SPEC: reducers at r:1,s:2222",
        ),
        (
            {"TF_CONFIG": '{"cluster": {"worker": ["w:1"], "ps": ["p:3"]}}'},
            "TF_CONFIG: reducers at p:3",
        ),
        (
            {"REDUCER_SERVICE": "pool.ml.svc", "REDUCER_REPLICAS": "2"},
            "REDUCER_SERVICE: reducers at pool-0.pool.ml.svc:2222,pool-1.pool.ml.svc:2222",
        ),
        ({"REDUCER_ADDRS": "a", "TF_CONFIG": "{"}, "REDUCER_ADDRS: reducers at a:2222"),
    ],
)
def test_reducers_are_found_in_the_order_of_the_rule(settings: dict[str, str], text: str) -> None:
    with start_ranks(1, _finds, settings) as ranks:
        assert text in values(ranks.collect(30))[0]
