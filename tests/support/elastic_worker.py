"""One worker of an elastic job without torch: `python -m tests.support.elastic_worker JSON`.

The worker sums integers, the last array of a step in quantised blocks, until the job has made
``steps`` steps, and prints a line of JSON for each step: the step, the ledger, the digest of the
sums, and whether the sum is, to the bit, that of the members in the ledger. Its parameters are the
sum of all results, so a worker that joins without them differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from reducer.kernels import load
from reducer_client import Quantized, ReducerError, elastic
from reducer_client.elastic import ArrayState
from reducer_tools.netlab import enter
from tests.support.block_rounds import BlocksRound

SIZES = (50_000, 1, 9_000)  # elements of the arrays of a step
WIRES = (None, None, Quantized("e3m0"))
END = 63  # where `names` tells that the job ends


def contribution(name: int, step: int, index: int) -> np.ndarray:
    """What a worker adds: integers that tell its name and the step."""
    rng = np.random.default_rng((step, index, name))
    return rng.integers(-50, 50, SIZES[index]).astype(np.float32)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    options = json.loads(sys.argv[1])
    if namespace := options.pop("namespace", ""):
        enter(namespace)
    steps, pause, name = options.pop("steps"), options.pop("pause", 0.0), options.pop("name")
    if listing := options.pop("discover", ""):
        options["discover"] = lambda: Path(listing).read_text().split()
    end = Path(options.pop("end", ""))  # once this file exists, the job ends
    sizes = options.pop("sizes", SIZES)
    parameters = {f"w{index}": np.zeros(size, np.float32) for index, size in enumerate(sizes)}
    names = np.zeros(64, np.int64)  # of the workers, by rank, and whether the job ends
    state = ArrayState({**parameters, "names": names})
    ready = time.monotonic()
    try:
        with elastic.connect(state=state, rank=name, **options) as group:
            say(event="in", name=name, rank=group.rank, era=group.era, step=group.steps,
                seconds=time.monotonic() - ready)  # fmt: skip
            while group.steps < steps and not names[END]:
                own = np.zeros(64, np.int64)
                own[group.rank], own[END] = name + 1, end.is_file()
                names[:] = group.all_reduce(own, key="names").wait()
                train(group, parameters, names)
                time.sleep(pause)
            say(event="end", name=name, digest=digest(parameters), members=len(group.members))
    except ReducerError as error:
        say(event="error", name=name, kind=type(error).__name__, reason=error.reason,
            text=str(error), step=0)  # fmt: skip
        return 3
    return 0


def train(group: elastic.ElasticGroup, parameters: dict[str, Any], names: np.ndarray) -> None:
    step, of_ranks = group.steps, names.copy()
    who = int(of_ranks[group.rank]) - 1
    works = [
        group.all_reduce(contribution(who, step, index), key=f"w{index}", wire_dtype=WIRES[index])
        for index in range(len(SIZES))
    ]
    is_exact, ledgers = True, []
    for index, work in enumerate(works):
        result, at = work.wait(), 0
        for entry in work.ledger:
            parts = {r: contribution(int(of_ranks[r]) - 1, step, index) for r in entry.members}
            expected = total(group, parts, WIRES[index])[at : at + entry.elements]
            is_exact &= bool((expected == result[at : at + entry.elements]).all())
            at += entry.elements
        is_exact &= at == SIZES[index]
        ledgers.append([[e.elements, len(e.members)] for e in work.ledger])
        parameters[f"w{index}"] += result
    era = group.era
    is_new = group.step()
    say(
        event="step", name=who, era=era, step=step, exact=is_exact, ledgers=ledgers,
        digest=digest(parameters), new_era=is_new, rank=group.rank, at=time.monotonic(),
    )  # fmt: skip


def total(
    group: elastic.ElasticGroup, parts: dict[int, np.ndarray], wire: Quantized | None
) -> np.ndarray:
    if wire is None:
        return np.asarray(np.sum([*parts.values()], axis=0))
    table = group.settings.chunk_table
    return BlocksRound(wire.code, "", table=table, kernels=load()).expected(parts, len(parts))


def digest(parameters: dict[str, Any]) -> str:
    total = hashlib.sha256()
    for array in parameters.values():
        total.update(array.tobytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
