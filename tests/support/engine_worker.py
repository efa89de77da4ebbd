"""The C++ worker program against real reducers: `-m tests.support.engine_worker PROGRAM`."""

from __future__ import annotations

import subprocess
import sys

import reducer_client

WORLD, ROUNDS = "3", "20"


def main() -> int:
    with reducer_client.local_reducers(2, lanes=2) as addresses:
        command = [sys.argv[1], ",".join(addresses), WORLD, ROUNDS]
        status = subprocess.run(command, timeout=300, check=False).returncode
    print(f"{sys.argv[1]}: {'ok' if status == 0 else f'exit status {status}'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
