"""The worker's image: the client and the NCCL plugin in it, against reducers in theirs."""

from __future__ import annotations

import json

import pytest

from tests.support.containers import Container, tool
from tests.support.wait import wait_until

# What the image's Python does with reducers at an address: the sum of both ranks, and whether NCCL
# would find the plugin by its name.
PROGRAM = """
import ctypes, json, pathlib, re, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, reducer_client

def rank(number):
    with reducer_client.connect(
        [sys.argv[1]], job="worker", rank=number, world_size=2, key_file="/key"
    ) as group:
        return group.all_reduce(np.full(100_000, number + 1, np.float32), key="k").wait(60)

with ThreadPoolExecutor(2) as pool:
    sums = [set(found.tolist()) for found in pool.map(rank, range(2))]
library = ctypes.CDLL("libnccl-net-reducer.so")
text = pathlib.Path("/usr/local/lib/libnccl-net-reducer.so").read_bytes()
versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_([0-9.]+)", text)}
print(json.dumps({
    "sums": [list(found) for found in sums],
    "tables": [v for v in range(6, 13) if hasattr(library, f"ncclCollNetPlugin_v{v}")],
    "glibc": ".".join(map(str, max(versions))),
}))
"""


def test_its_client_and_plugin_work(
    image: str, worker_image: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--publish=127.0.0.1::2222", f"--volume={key}:/key:ro", "--env=REDUCER_LANES=1"]
    with Container(image, options=[*options, "--env=REDUCER_KEY_FILE=/key"]) as reducer:
        wait_until(lambda: '"ready"' in reducer.log, 30, "ready")
        done = tool(
            "podman", "run", "--rm", "--network=host", f"--volume={key}:/key:ro", worker_image,
            "python3", "-c", PROGRAM, reducer.published(2222),
        )  # fmt: skip
    found = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\nplugin in the worker's image: needs glibc {found['glibc']}")
    assert found["sums"] == [[3.0], [3.0]]
    assert found["tables"] == [6, 7, 8, 9, 10, 11, 12]
