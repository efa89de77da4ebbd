"""deploy/compose.yaml, brought up by podman-compose."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ROOT
from tests.support.containers import STORAGE, tool
from tests.support.groups import Groups, Values
from tests.support.ports import free_ports


@pytest.fixture
def addresses(image: str, key: str) -> Iterator[list[str]]:
    """Those of the two reducers, running."""
    ports = [str(port) for port in free_ports(2)]
    variables = {"REDUCER_KEY": key, "REDUCER_PORT_0": ports[0], "REDUCER_PORT_1": ports[1]}
    compose = [
        str(Path(sys.executable).with_name("podman-compose")),
        f"--podman-args={' '.join(STORAGE)}",
        *("-p", "reducer-test", "-f", str(ROOT / "deploy" / "compose.yaml")),
    ]
    try:
        tool(*compose, "up", "--detach", "--no-build", **variables)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        tool(*compose, "down", "--timeout", "5", **variables)


def test_its_reducers_serve_a_job(addresses: list[str], key: str) -> None:
    with Groups(2, addresses, "compose", key_file=key) as groups:
        groups.turn(Values(3, 2, 100_000), 0)
