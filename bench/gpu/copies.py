"""GB/s of copies between device and host: by size, from pinned and pageable memory, both ways.

The client copies in slices of 4 MiB from and to pinned memory. `both` is both directions at once,
each on a stream of its own, as the client has them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TOTAL = 256 << 20  # bytes in a measurement
_REPEATS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.copies", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="PATH", help="append one line for each size")
    options = parser.parse_args()
    print("slice        out GB/s  back GB/s  both GB/s", flush=True)
    for pinned in (True, False):
        for size in (64 << 10, 1 << 20, 4 << 20, 32 << 20):
            line = {"what": "copies", "bytes": size, "pinned": pinned, **_measure(size, pinned)}
            memory = "pinned" if pinned else "pageable"
            rates = "".join(f"{line[way]:11.2f}" for way in ("out", "back", "both"))
            print(f"{size >> 10:6} KiB {rates}  {memory}", flush=True)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(line)}\n")
    return 0


def _measure(size: int, pinned: bool) -> dict[str, float]:
    """GB/s by direction; `both` is the sum of the two."""
    here = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams: list[Any] = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def copy(way: int) -> None:
        with torch.cuda.stream(streams[way]):
            target, source = (here, there) if way == 0 else (there, here)
            target[way].copy_(source[way], non_blocking=True)

    def both() -> None:
        copy(0)
        copy(1)

    return {
        "out": _rate(lambda: copy(0), size),
        "back": _rate(lambda: copy(1), size),
        "both": _rate(both, 2 * size),
    }


def _rate(copy: Callable[[], None], size: int) -> float:
    """The median rate of copies that are queued back to back."""
    count = max(1, _TOTAL // size)
    rates = []
    for _ in range(1 + _REPEATS):  # the first is the warm-up
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            copy()
        torch.cuda.synchronize()
        rates.append(count * size / (time.perf_counter() - began) / 1e9)
    return statistics.median(rates[1:])


if __name__ == "__main__":
    sys.exit(main())
