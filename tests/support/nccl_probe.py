"""Loads one libnccl with the plugin in a process of its own; prints the outcome as JSON.

python -m tests.support.nccl_probe LIBNCCL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.libnccl import LibraryError, Nccl


def main() -> None:
    nccl = Nccl(Path(sys.argv[1]))
    unique_id = nccl.unique_id()
    print(
        json.dumps({"version": nccl.version, "mapped": _mapped(), "join": _join(nccl, unique_id)})
    )


def _mapped() -> list[str]:
    """The plugins that this process has loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "libnccl-net" in line}
    return sorted(paths)


def _join(nccl: Nccl, unique_id: bytes) -> int:
    """The result of ncclCommInitRank with a single rank."""
    try:
        nccl.join(unique_id, 0, 1).destroy()
    except LibraryError as error:
        return error.result
    return 0


if __name__ == "__main__":
    main()
