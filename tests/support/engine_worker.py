"""The C++ worker program against real reducers: `-m tests.support.engine_worker PROGRAM`."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import reducer_client

WORLD, ROUNDS = "3", "20"
KEY = "a key of printable letters, 36 bytes"


def run(program: str, key_file: str, key: str) -> int:
    """Its exit status, with reducers that have the key of the file, or none."""
    with reducer_client.local_reducers(2, lanes=2, key_file=key_file) as addresses:
        command = [program, ",".join(addresses), WORLD, ROUNDS]
        ended = subprocess.run(command, input=key + "\n", text=True, timeout=300, check=False)
    mode = "psk" if key else "open"
    status = ended.returncode
    print(f"{program} ({mode}): {'ok' if status == 0 else f'exit status {status}'}")
    return status


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key")
        path.touch(0o600)
        path.write_bytes(base64.urlsafe_b64encode(KEY.encode()))
        return run(sys.argv[1], "", "") or run(sys.argv[1], str(path), KEY)


if __name__ == "__main__":
    sys.exit(main())
