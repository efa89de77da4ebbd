"""When the pushes to a table are applied: at once, within a clock bound, or in common steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

Late = Literal["drop", "carry"]

MOST = (1 << 31) - 1  # of a bound
MOST_LEFT_OUT = 4  # steps running that a worker may be left out, by default


class WireMode(NamedTuple):
    """The fields of a table's description that say its mode (PROTOCOL.md, section 17)."""

    mode: str
    bound: int
    workers: int
    quorum: int
    late: Late


@dataclass(frozen=True)
class Async:
    """Each push is applied as soon as it comes.

    Args:
        staleness: the greatest number of updates that a shard may have had since the pull from
            which the gradient was computed; an older push is dropped. None means no bound.
    """

    staleness: int | None = None

    def __post_init__(self) -> None:
        if self.staleness is not None:
            _check("Async(staleness)", self.staleness, 0, MOST)

    def on_the_wire(self, workers: int | None) -> WireMode:
        return WireMode("async", -1 if self.staleness is None else self.staleness, 0, 0, "drop")


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel: a pull waits for workers that are too far behind.

    A pull after c calls of ``clock`` contains all pushes of all workers up to their clock
    c - ``bound``. With 0, each pull waits until all workers have ended the same clock.
    """

    bound: int

    def __post_init__(self) -> None:
        _check("SSP(bound)", self.bound, 0, MOST)

    def on_the_wire(self, workers: int | None) -> WireMode:
        return WireMode("ssp", self.bound, workers or 0, 0, "drop")


@dataclass(frozen=True)
class Sync:
    """Each step takes the mean of one push of every worker."""

    def on_the_wire(self, workers: int | None) -> WireMode:
        size = _require_workers(self, workers)
        return WireMode("step", MOST_LEFT_OUT, size, size, "drop")


@dataclass(frozen=True)
class KOfN:
    """Each step takes the mean of the pushes of the first ``k`` workers.

    Args:
        k: how many workers a step waits for.
        late: what becomes of the push of a worker that came too late. ``"drop"``: nothing.
            ``"carry"``: the worker adds it to its next push, which then counts for both.
        bound: how many steps running a worker may be left out. Then the next step waits for it.
    """

    k: int
    late: Late = "drop"
    bound: int = MOST_LEFT_OUT

    def __post_init__(self) -> None:
        _check("KOfN(k)", self.k, 1, 8_192)
        _check("KOfN(bound)", self.bound, 1, MOST)
        if self.late not in get_args(Late):
            raise ValueError(f"KOfN(late={self.late!r}): expected one of {get_args(Late)}")

    def on_the_wire(self, workers: int | None) -> WireMode:
        size = _require_workers(self, workers)
        if self.k > size:
            raise ValueError(
                f"KOfN({self.k}): k is above the number of workers, which is {size}: a step would "
                "wait for ever"
            )
        return WireMode("step", self.bound, size, self.k, self.late)


Mode: TypeAlias = Async | SSP | Sync | KOfN
GivenMode: TypeAlias = Literal["async", "sync"] | Mode


def find_mode(given: object) -> Mode:
    """The mode for what a caller gave. Raises ValueError, which lists the modes."""
    if isinstance(given, Async | SSP | Sync | KOfN):
        return given
    if given == "async":
        return Async()
    if given == "sync":
        return Sync()
    raise ValueError(
        f'mode={given!r}: expected "async", "sync", Async(staleness), SSP(bound), Sync() or '
        "KOfN(k, late, bound)"
    )


def from_the_wire(found: WireMode) -> Mode:
    """The mode in a description that a lane sent."""
    if found.mode == "async":
        return Async(None if found.bound < 0 else found.bound)
    if found.mode == "ssp":
        return SSP(max(0, found.bound))
    if found.quorum == found.workers and found.bound == MOST_LEFT_OUT and found.late == "drop":
        return Sync()
    return KOfN(max(1, found.quorum), found.late, max(1, found.bound))


def _require_workers(mode: object, workers: int | None) -> int:
    if workers is None:
        raise ValueError(
            f"mode={mode}: the number of workers is not known; give it "
            "(parameter_server(workers=...)), or set REDUCER_WORLD_SIZE"
        )
    return workers


def _check(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: expected an integer from {low} to {high}, got {value!r}")
