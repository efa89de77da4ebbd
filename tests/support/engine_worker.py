"""Runs a C++ worker against real reducers.

`python -m tests.support.engine_worker PROGRAM [MODE ...]`: a mode is how reducers and workers
prove who they are: open, psk or tls. By default all three.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.support.certs import Authority
from tests.support.reducers import Reducers

WORLD, ROUNDS = "3", "20"
KEY = "a key of printable letters, 36 bytes"


def _run(program: str, mode: str, *flags: str, key: str = "", files: tuple[str, ...] = ()) -> int:
    """Run the program with reducers that have these flags; returns the exit status."""
    with Reducers(2, *flags, lanes=2 if mode == "open" else 1) as reducers:
        command = [program, ",".join(reducers.addresses), WORLD, ROUNDS, *files]
        ended = subprocess.run(command, input=key + "\n", text=True, timeout=300, check=False)
    status = ended.returncode
    print(f"{program} ({mode}): {'ok' if status == 0 else f'exit status {status}'}")
    return status


def main() -> int:
    program, *modes = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key")
        path.touch(0o600)
        path.write_bytes(base64.urlsafe_b64encode(KEY.encode()))
        certs = Authority(Path(folder)).issue()
        runs = {
            "open": partial(_run, program, "open"),
            "psk": partial(_run, program, "psk", "--key-file", str(path), key=KEY),
            "tls": partial(
                _run, program, "tls", *certs.flags, files=(certs.cert, certs.key, certs.ca)
            ),
        }
        return int(any(runs[mode]() for mode in modes or runs))  # a signal's status is negative


if __name__ == "__main__":
    sys.exit(main())
