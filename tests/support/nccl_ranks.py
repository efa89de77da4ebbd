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
        ended = subprocess.run([program, RANKS, ROUNDS], env=env, timeout=120, check=False)
    status = ended.returncode
    print(f"{program}: {'ok' if status == 0 else f'exit status {status}'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
