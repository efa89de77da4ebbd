"""How much of the time workers compute, at 100 Mbit/s and 30 ms.

Each worker has an emulated accelerator: a layer's forward and backward take a fixed time and no
core, so that workers do not compete for the cores of this machine. All that is sent is real: the
gradients, the reducers, and the bytes through the emulated link. The share of computing is the
accelerator's time over the time of the steps, on the worker for which it is smallest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.machine import facts, load
from bench.slow_links.contenders import METHODS, STREAMING, WHOLE
from bench.slow_links.keeper import Keeper
from bench.slow_links.results import LINK
from bench.slow_links.site import open_site

_WORKER = "bench.slow_links.busy_worker"
_WARMUP = 2
# 16.8 MB of gradients, which take 1.4 s at 100 Mbit/s.
_LAYERS, _SIZE = 8, 1 << 19


@dataclass(frozen=True)
class Share:
    """``wall``: seconds of all steps of the slowest worker; ``computing``: of its accelerator."""

    method: str
    workers: int
    steps: int
    wall: float
    computing: float

    @property
    def share(self) -> float:
        return self.computing / self.wall


def main() -> None:
    options = _parse_arguments()
    with ExitStack() as stack:
        keep = Keeper(stack.enter_context(options.json.open("w")) if options.json else None)
        keep("context", **facts(), rate=LINK.rate, rtt=LINK.rtt, bytes=4 * _LAYERS * _SIZE)
        print(f"{'workers':>7}  {'method':24}{'step':>9}{'computing':>11}")
        for workers in options.workers:
            for each in _measure(workers, options):
                keep("share", **asdict(each))
                step = each.wall / each.steps
                row = f"{workers:>7}  {each.method:24}{step * 1e3:>6.0f} ms{each.share:>11.1%}"
                print(row + _verdict(each), flush=True)
        keep("end", load=load())


def _measure(workers: int, options: argparse.Namespace) -> Iterator[Share]:
    # Data parallel takes several times as long for a step.
    steps = {
        name: options.steps if METHODS[name].every > 1 else max(1, options.steps // 5)
        for name in options.names
    }
    case = {
        "methods": steps, "warmup": _WARMUP,
        "layers": _LAYERS, "size": _SIZE, "seconds": options.compute_ms / 1e3,
    }  # fmt: skip
    came: dict[str, list[Share]] = {name: [] for name in options.names}
    with open_site(workers, options.reducers, LINK) as site:
        for _, line in site.run(_WORKER, case):
            name = line["method"]
            came[name].append(Share(workers=workers, steps=steps[name], **line))
            if len(came[name]) == workers:
                yield min(came[name], key=lambda each: each.share)


def _verdict(share: Share) -> str:
    if share.method == WHOLE:
        return f"   < 20 %: {'met' if share.share < 0.2 else 'MISSED'}"
    if share.method in STREAMING:
        return f"   >= 95 %: {'met' if share.share >= 0.95 else 'MISSED'}"
    return ""


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.slow_links.busy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, nargs="+", default=[2, 4])
    add("--reducers", type=int, default=2)
    add("--steps", type=int, default=100, help="of local steps; a fifth of them with gradients")
    add("--compute-ms", type=float, default=240.0, help="the accelerator's time for a step")
    add("--methods", metavar="NAME,...", help="default: all but top-k and PowerSGD")
    add("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    default = [name for name in METHODS if name.split()[0] not in ("top", "PowerSGD")]
    options.names = options.methods.split(",") if options.methods else default
    if unknown := set(options.names) - set(METHODS):
        parser.error(f"no method {', '.join(sorted(unknown))}: expected {', '.join(METHODS)}")
    return options


if __name__ == "__main__":
    main()
