"""What the loss of a worker costs a training: our `Elastic` beside torchft, with the same kills.

Both sides train the same model on digits, each worker in a process of this machine. One worker at a
time is lost, and replaced as soon as the others have ended a step without it. The sides take turns.
Needs `pip install torchft`, except with `--sides elastic:1`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from importlib import metadata

from bench.machine import facts
from bench.worker_loss.job import Contender, Cost, Loss, start
from reducer.columns import aligned

TORCHFT_SILENCE, TORCHFT_TIMEOUT = 5.0, 60.0  # its defaults, in seconds


def contender(text: str) -> Contender:
    """``SIDE``, ``SIDE:SILENCE`` or ``torchft:SILENCE:TIMEOUT``."""
    side, *numbers = text.split(":")
    if side not in ("elastic", "torchft") or len(numbers) > (2 if side == "torchft" else 1):
        raise argparse.ArgumentTypeError(f"{text}: expected elastic or torchft, and seconds")
    try:
        seconds = [float(number) for number in numbers]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds after {side}:") from None
    if side == "elastic":
        return Contender(side, *(seconds or [1.0]))
    return Contender(side, *(seconds + [TORCHFT_SILENCE, TORCHFT_TIMEOUT][len(seconds) :]))


def schedule(block: int, kills: int, workers: int, how: Sequence[str]) -> list[Loss]:
    rng = random.Random(block)
    return [
        Loss(rng.uniform(0.5, 1.5), rng.randrange(workers), rng.choice(how)) for _ in range(kills)
    ]


def table(costs: dict[Contender, list[Cost]]) -> str:
    rows = [("side", "loss", "of them", "recovery", "steps lost", "join", "others stand still")]
    for side, all_ in costs.items():
        for how in sorted({cost.how for cost in all_}):
            some = [cost for cost in all_ if cost.how == how]
            columns = [[getattr(c, name) for c in some] for name in ("recovery", "join", "stall")]
            recovery, join, stall = [
                f"{statistics.median(column):.2f} / {max(column):.2f} s" for column in columns
            ]
            lost = statistics.mean(cost.dropped for cost in some)
            rows.append((str(side), how, f"{len(some)}", recovery, f"{lost:.1f}", join, stall))
    return "\n".join(aligned(rows, left={0, 1}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.worker_loss", description=__doc__)
    sides = [contender("elastic"), contender("torchft"), contender("torchft:1:5")]
    parser.add_argument("--sides", type=contender, nargs="+", default=sides, metavar="SIDE:SECONDS")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=4, help="turns of each side, each a new job")
    parser.add_argument("--kills", type=int, default=5, help="in each turn")
    parser.add_argument("--how", nargs="+", choices=("kill", "stop"), default=["kill", "stop"])
    parser.add_argument("--width", type=int, default=256, help="of the two hidden layers")
    options = parser.parse_args(arguments)
    costs: dict[Contender, list[Cost]] = {side: [] for side in options.sides}
    versions = {}
    if any(side.side == "torchft" for side in options.sides):
        try:
            versions = {"torchft": metadata.version("torchft")}
        except metadata.PackageNotFoundError:
            parser.error("torchft is not installed: pip install torchft, or --sides elastic:1")
    os.environ.setdefault("RUST_LOG", "error")  # torchft writes a line for each step
    print(json.dumps({**facts(), **versions}), flush=True)
    for block in range(options.blocks):
        for side in options.sides:
            with start(side, options.workers, options.width) as job:
                for loss in schedule(block, options.kills, options.workers, options.how):
                    cost = job.suffer(loss)
                    costs[side].append(cost)
                    print(f"    {side}: {cost}", flush=True)
                print(f"    {side}: {job.summary()}", flush=True)
    print("times: median / most")
    print(table(costs))


main()
