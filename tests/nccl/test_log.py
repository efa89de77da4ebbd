"""Parsing of NCCL's log, with lines as its versions write them."""

from __future__ import annotations

import pytest

from tests.support.nccl_log import Choice, choices, complaints, nets

_INFO = "node:101:102 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/REDUCER/0", {"REDUCER"}),
        ("Channel 00 : 1[1000] -> 0[1000] [receive] via NET/Socket/0/Shared", {"Socket"}),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", set()),
        ("CollNet 00/0 : 1 [send] via COLLNET/REDUCER/0", set()),
    ],
)
def test_nets(line: str, found: set[str]) -> None:
    assert nets(_INFO + line + "\n") == found


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("65536 Bytes -> Algo 1 proto 2 time 10.1", Choice(65_536, "ring")),
        ("4194304 Bytes -> Algo 3 proto 2 time 0.000000", Choice(4_194_304, "collnetchain")),
        (
            "AllReduce: 4194304 Bytes -> Algo COLLNET_CHAIN proto SIMPLE channel{Lo..Hi}={0..1}",
            Choice(4_194_304, "collnetchain"),
        ),
        ("AllReduce: 8 Bytes -> Algo Tree proto LL channel{Lo..Hi}={0..0}", Choice(8, "tree")),
    ],
)
def test_choices(line: str, choice: Choice) -> None:
    assert choices(f"{_INFO}comm 0x1 rank 0\n{_INFO}{line}\n") == [choice]


_NO_FILE = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        (f"NET/Plugin : Plugin load (libnccl-net-x.so) returned 2 : x: {_NO_FILE}", True),
        (f"NET/Plugin : dlerror=libnccl-net-x.so: {_NO_FILE} No plugin found (x), using", True),
        ("NET/Plugin: No plugin found (libnccl-net-x.so)", True),
        ("NET/Plugin: No plugin found (reducer)", False),
        ("NET/Plugin: Could not find: x libnccl-net-x.so. Using internal network plugin.", True),
        ("NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.", True),
        ("NET/Plugin: Plugin name set by env to libnccl-net-reducer.so", False),
        ("NET/REDUCER : the reducers are not used: NCCL_COLLNET_ENABLE is not 1", False),
    ],
)
def test_complaints(line: str, complains: bool) -> None:
    assert complaints(_INFO + line + "\n") == ([_INFO + line] if complains else [])
