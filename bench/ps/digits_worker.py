"""One worker of `bench.ps digits`: sleeps as long as a gradient would take, pushes and pulls.

The worker reads its setup, prints a line when it has the table, and begins with the next line that
it reads. Worker 0 prints a line with the accuracy after each pull. Every worker prints what became
of its pushes at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress

import numpy as np

from bench.ps import digits_net
from reducer.optimizers import from_fields
from reducer.parent import die_with_parent
from reducer_client.errors import NumericError
from reducer_client.tables import SSP, Async, KOfN, Sync, Table, parameter_server
from reducer_client.tables.advice import find_advice

BATCH = 16
STALL = 20.0  # units of a gradient that stalls
MODES = {"async": Async, "sync": Sync, "k of n": KOfN, "ssp": SSP}


def main() -> None:
    die_with_parent(os.getppid())
    setup = json.loads(sys.stdin.readline())
    number, workers, seed = setup["worker"], setup["workers"], setup["seed"]
    data = np.load(setup["data"])
    mine = digits_net.shares(data["labels"], workers, setup["skewed"], seed)[number]
    net = digits_net.first_values(seed)
    random = np.random.default_rng([seed, number])
    delays = np.random.default_rng([seed, number, 1])
    unit = setup["unit"] * (setup["slow"] if number == workers - 1 else 1.0)
    kind, options = setup["mode"]
    with parameter_server(
        setup["addresses"], job=setup["job"], worker=number, workers=workers
    ) as server:
        table = server.table(
            "net", net, optimizer=from_fields(setup["optimizer"]), mode=MODES[kind](**options)
        )
        say(ready=True)
        sys.stdin.readline()
        begun = time.monotonic()
        while time.monotonic() < begun + setup["seconds"]:
            table.pull(out=net)
            at = time.monotonic()
            if number == 0:
                right = digits_net.accuracy(net, data["test_images"], data["test_labels"])
                say(at=at - begun, accuracy=right, version=table.version)
            batch = random.choice(mine, BATCH)
            gradients = digits_net.gradients(net, data["images"][batch], data["labels"][batch])
            wait_until(at + unit * random.uniform(0.9, 1.1) * stall(delays, setup["stalls"]))
            push(table, gradients)
        counts = vars(table.counts)
        advice = find_advice(table.optimizer, table.mode)
        say(end=True, **counts, staleness=table.staleness.mean, warned=advice is not None)


def stall(random: np.random.Generator, share: float) -> float:
    """How many times as long the next gradient takes, if this share of the gradients stalls."""
    return STALL if random.random() < share else 1.0


def push(table: Table, gradients: digits_net.Arrays) -> None:
    with suppress(NumericError):  # counted by the table
        table.push(gradients).wait()
    if isinstance(table.mode, SSP):
        table.clock()


def wait_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
