"""Runs C++ ranks of the plugin on real reducers: `python -m tests.support.nccl_ranks PROGRAM`."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.reducers import Reducers

RANKS, ROUNDS = "3", "3"


def main() -> int:
    program = sys.argv[1]
    with Reducers(2, lanes=2) as reducers:
        env = {**os.environ, "REDUCER_ADDRS": ",".join(reducers.addresses)}
        for wire in ("float32", "e3m0"):  # in which the ranks' sums of equal values are exact
            env["REDUCER_WIRE_DTYPE"] = wire
            ended = subprocess.run([program, RANKS, ROUNDS], env=env, timeout=120, check=False)
            if status := ended.returncode:
                break
    print(f"{program}: {'ok' if status == 0 else f'exit status {status}'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
