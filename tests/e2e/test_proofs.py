"""What modes psk and tls have in common; the rest is in test_psk.py and test_tls.py."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import reducer_client
from reducer.wire.codes import PROTOCOL_MINOR
from reducer.wire.header import PREFACE_SIZE
from reducer_client import ProtocolVersionError, ReducerUnavailableError
from tests.support.certs import Files
from tests.support.handshakes import PSK_OPENING
from tests.support.impostor import Impostor
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers
from tests.support.wait import AT_ONCE

# Addresses and options for `connect`.
Place = tuple[list[str], dict[str, str]]


class Proof(NamedTuple):
    """How workers and reducers prove themselves in one mode."""

    flags: tuple[str, ...]  # for `reducer serve`
    options: dict[str, str]  # for `connect`
    unix: bool  # whether Unix sockets are used
    opening: int  # bytes that a worker sends before it waits for the reducer
    silence: str  # what a worker reports as missing if the reducer is silent


@pytest.fixture(scope="module", params=["psk", "tls"])
def proof(request: pytest.FixtureRequest, key_file: str, certs: Files) -> Proof:
    if request.param == "psk":
        flags = ("--key-file", key_file)
        return Proof(flags, {"key_file": key_file}, True, PSK_OPENING, "proof of the key")
    silence = "the TLS handshake timed out"
    return Proof(tuple(certs.flags), certs.arguments, False, PREFACE_SIZE, silence)


@pytest.fixture(scope="module")
def addresses(proof: Proof) -> Iterator[list[str]]:
    with Reducers(2, *proof.flags, lanes=2) as started:
        yield started.addresses


@pytest.fixture(scope="module")
def plain() -> Iterator[list[str]]:
    """The addresses of open reducers."""
    with reducer_client.local_reducers(2, lanes=2) as started:
        yield started


def _sums(rank: int, world: int, place: Place, transport: str, local: int) -> str:
    values = np.arange(300_000, dtype=np.float32) * (rank + 1)
    digest = hashlib.sha256()
    addresses, options = place
    with join(rank, world, addresses, "proof", transport=transport, **options) as group:
        for step in range(3):
            digest.update(group.all_reduce(values + step, key="k").wait(60).tobytes())
            digest.update(group.all_reduce(values[:9], key="small").wait(60).tobytes())
        stats = group.stats()
    assert (stats["connections"], stats["local_connections"]) == (4, local)
    return digest.hexdigest()


def test_the_sums_are_those_of_an_open_reducer(
    addresses: list[str], proof: Proof, plain: list[str]
) -> None:
    place = (addresses, proof.options)
    results = set(run_ranks(3, _sums, place, "auto", 4 if proof.unix else 0))
    results |= set(run_ranks(3, _sums, place, "tcp", 0))
    results |= set(run_ranks(3, _sums, (plain, {}), "auto", 4))
    assert len(results) == 1


def _ddp(rank: int, world: int, store: str, places: list[Place]) -> set[str]:
    """The parameters after the same training with each place."""
    from tests.e2e import test_ddp as ddp

    digests = set()
    with ddp._process_group(rank, world, store):
        for addresses, options in places:
            with join(rank, world, addresses, "proof-ddp", **options) as group:
                model = ddp._make(group)
                ddp._train(model, rank)
                digests.add(ddp._digest(model))
    return digests


def test_a_ddp_hook(addresses: list[str], proof: Proof, plain: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    places: list[Place] = [(addresses, proof.options), (plain, {})]
    first, second = run_ranks(2, _ddp, str(tmp_path / "store"), places)
    assert first == second and len(first) == 1


def test_another_protocol_version_names_both(proof: Proof) -> None:
    def act(sock: socket.socket, number: int) -> None:
        impostor.read(sock, proof.opening)
        sock.sendall(b"ORSP\x09\x02" + bytes(10))
        _wait_for_end(sock)

    start = time.monotonic()
    with Impostor(act) as impostor, pytest.raises(ProtocolVersionError) as caught:
        join(0, 1, [impostor.address], "proof", connect_timeout=30, **proof.options)
    assert time.monotonic() - start < 30 - AT_ONCE, "retried without need"
    text = str(caught.value)
    assert f"1.{PROTOCOL_MINOR}" in text and "9.2" in text and impostor.address in text


def test_a_listener_that_is_silent_is_tried_again(proof: Proof) -> None:
    """A reducer that was stopped during the handshake may answer on the next connection."""
    start = time.monotonic()
    with (
        Impostor(lambda sock, number: _wait_for_end(sock)) as impostor,
        pytest.raises(ReducerUnavailableError, match=proof.silence) as caught,
    ):
        join(0, 1, [impostor.address], "proof", connect_timeout=7.0, **proof.options)
    assert time.monotonic() - start < 7.0 + AT_ONCE
    assert impostor.address in str(caught.value)
    assert impostor.connections == 2


def _wait_for_end(sock: socket.socket) -> None:
    while sock.recv(65_536):
        pass
