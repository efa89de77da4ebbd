"""torchft's DiLoCo on the same model, text and steps as in `bench.slow_links.text`.

Needs root, and torchft (`pip install torchft`). The workers are in a network namespace, so that the
bytes on its loopback are theirs. gloo's workers connect to each other, where the emulated link of
this bench cannot stand. Therefore the time of an exchange is computed: the least that a ring needs
at this link, which has 2 (n - 1) stages.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.fleet import Fleet, OneHost
from bench.machine import facts, load
from bench.slow_links.keeper import Keeper
from bench.slow_links.model import Transformer
from bench.slow_links.results import LINK, Pace, Point
from bench.slow_links.text import end, measure_compute
from reducer_tools.netlab import Lab, Nic

_NAME = "torchft DiLoCo"
_EVERY = 50
_HOST = "torchft"
_SILENCE_SECONDS = 600.0


def main() -> None:
    options = _parse_arguments()
    with options.json.open("w") as file:
        keep = Keeper(file)
        keep("context", **facts(), workers=options.workers, steps=options.steps, seed=options.seed)
        pace = Pace(measure_compute(50), ring_seconds(options.workers), _EVERY)
        keep("pace", method=_NAME, pace=asdict(pace), computed=True)
        end(_NAME, *_train(options), keep)
        keep("end", load=load())


def ring_seconds(workers: int) -> float:
    """The least time of an all-reduce of the model in a ring: each stage moves a part."""
    size = sum(p.numel() * p.element_size() for p in Transformer().parameters())
    return 2 * (workers - 1) * LINK.seconds(-(-size // workers))


def _train(options: argparse.Namespace) -> tuple[list[Point], list[str]]:
    case = {
        "workers": options.workers, "steps": options.steps, "evaluate": options.evaluate,
        "seed": options.seed, "every": _EVERY,
    }  # fmt: skip
    points, digests = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab({_HOST: Nic()}) as lab,
        Fleet(OneHost(lab, _HOST)) as fleet,
    ):
        cases = [{**case, "store": f"{folder}/store", "rank": r} for r in range(options.workers)]
        hosts = [_HOST] * options.workers
        worker = "bench.slow_links.torchft_worker"
        for _, line in fleet.run_workers(hosts, worker, cases, _SILENCE_SECONDS):
            if "digest" in line:
                digests.append(line["digest"])
            else:
                points.append(Point(**line))
    return points, digests


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.slow_links.beside_torchft",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, default=4)
    add("--steps", type=int, default=2000)
    add("--evaluate", type=int, default=100, help="steps between two losses")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="PATH", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
