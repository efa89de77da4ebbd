"""Compares the model with the engine, with all lanes real, and with measured prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.scale.cluster import Case
from bench.scale.outcome import Outcome
from bench.scale.sweep import one_size, run

# Measured with prototypes of this design, 64 MiB float32 on limited NICs (network namespaces,
# tbf): hosts of each kind, Gbit/s, KiB of a chunk, KiB of credit, time / (N/BW).
MEASURED = (
    (4, 1.0, 64, 512, 1.057),
    (4, 1.0, 128, 512, 1.064),
    (4, 1.0, 256, 4096, 1.07),
    (4, 1.0, 512, 4096, 1.098),
    (4, 1.0, 1024, 4096, 1.14),
    (8, 0.5, 64, 512, 1.070),
    (8, 0.5, 128, 4096, 1.095),
    (8, 0.5, 256, 4096, 1.11),
    (8, 0.5, 1024, 4096, 1.21),
)
CHECKED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity, from the model and from the reference."""

    what: str
    model: float
    other: float


def against_engine(workers: Sequence[int]) -> list[Pair]:
    """Compare the client's rules in worker.py with the client's engine; every lane is real."""
    pairs = []
    for count in workers:
        case = Case(count, count, real_lanes=count, round_bytes=CHECKED_BYTES)
        model, engine = run(case), run(replace(case, engine=True))
        what = f"W={count}, model beside the engine"
        pairs.append(Pair(f"{what}: time / (N/BW)", _x(case, model), _x(case, engine)))
        for kind in sorted(model.frames_in | engine.frames_in):
            frames = [outcome.frames_in.get(kind, 0) for outcome in (model, engine)]
            pairs.append(Pair(f"{what}: {kind} frames to a lane", *frames))
        pairs.append(Pair(f"{what}: bytes held by a lane", model.peak, engine.peak))
    return pairs


def against_all_lanes(workers: Sequence[int], real_lanes: int) -> list[Pair]:
    """Compare a few real lanes and symmetry with all lanes real."""
    pairs = []
    for count in workers:
        case = Case(count, count, real_lanes=real_lanes)
        every = run(replace(case, real_lanes=count))
        what = f"W={count}, {real_lanes} real lanes beside all: time / (N/BW)"
        pairs.append(Pair(what, _x(case, run(case)), _x(case, every)))
    return pairs


def against_measured() -> list[Pair]:
    """Compare with measured prototypes; CPU has no price, since it did not limit the prototypes."""
    pairs = []
    for hosts, gbit, chunk, credit, measured in MEASURED:
        case = Case(
            hosts,
            hosts,
            real_lanes=hosts,
            rate=gbit * 1e9 / 8,
            table=one_size(chunk << 10),
            credit=credit << 10,
        )
        what = f"{hosts}+{hosts}, {gbit:g} Gbit/s, chunks of {chunk} KiB, beside a measurement"
        pairs.append(Pair(f"{what}: time / (N/BW)", _x(case, run(case)), measured))
    return pairs


def print_pairs(pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        print(f"{pair.what:<75} {pair.model:>11.5g} {pair.other:>11.5g}")


def _x(case: Case, outcome: Outcome) -> float:
    return outcome.timing.seconds / case.ideal
