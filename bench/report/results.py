"""Lines of `bench.allreduce` as series, and the figures computed from their times.

GB is 1e9 bytes; N is the size of the array; n is the number of workers.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from reducer.shares import least_time
from reducer_tools.netlab import Nic

Line = dict[str, Any]
REDUCERS = "reducers"
_OVER_REDUCERS = (REDUCERS, "plugin", "elastic")
# A frame of 1,514 bytes carries 1,448 bytes of TCP payload.
HEADERS = 1.045
_SMALL = 1 << 20
_FULL = 0.95
_NEAR = 1.2
# Bytes of an element, the larger of both directions.
_WIDTHS = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "int8": 260 / 256,
    "int8-bf16": 2.0,
    "e3m0": 132 / 256,
    "e3m0-bf16": 2.0,
}


class ResultsError(ValueError):
    """A file has a line that is no result; the text names the file and the line."""


@dataclass(frozen=True)
class Topology:
    """Hosts and settings of a run. Rates have tc's syntax; None if no NIC limits."""

    workers: int
    reducers: int
    lanes: int
    rate: str | None
    reducer_rate: str | None
    congestion: str
    transport: str
    chunk_table: str
    credit: str
    hosted: bool = False  # a reducer on each worker's host as well

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of a worker's NIC in each direction."""
        return Nic(self.rate).bytes_per_second

    @property
    def reducer_bandwidth(self) -> float | None:
        return Nic(self.reducer_rate).bytes_per_second

    @property
    def ring_share(self) -> float:
        """Number of arrays that each worker of a ring sends: the minimum without reducers."""
        return 2 * (self.workers - 1) / self.workers


@dataclass(frozen=True)
class Series:
    """All measurements of one contender in one case of a run."""

    topology: Topology
    contender: str
    size: int
    dtype: str
    wire_dtype: str
    seconds: tuple[float, ...]
    reducer_cpu: float
    worker_cpu: float
    nic_sent: int
    cpu_busy: float
    cpu_total: float

    @property
    def case(self) -> tuple[str, str, int]:
        return self.dtype, self.wire_dtype, self.size

    @property
    def count(self) -> int:
        """Number of elements of the array."""
        return int(self.size / _WIDTHS[self.dtype])

    @property
    def wire_size(self) -> float:
        """Bytes of the array on the wire."""
        return self.size * _WIDTHS[self.wire_dtype] / _WIDTHS[self.dtype]

    @property
    def median(self) -> float:
        """The median time in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float, float, float]:
        """Minimum, quartiles and maximum in seconds."""
        low, high = min(self.seconds), max(self.seconds)
        if len(self.seconds) < 2:
            return low, low, high, high
        quartiles = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, quartiles[0], quartiles[2], high

    @property
    def algbw(self) -> float:
        """GB/s of the array: N / time."""
        return self.size / self.median / 1e9

    @property
    def busbw(self) -> float:
        """GB/s that each link of a ring would carry in this time, as in nccl-tests."""
        return self.algbw * self.topology.ring_share

    @property
    def wire_rate(self) -> float | None:
        """GB/s sent by a worker's NIC during the reductions; None on loopback."""
        return self.nic_sent / sum(self.seconds) / 1e9 if self.topology.rate else None

    @property
    def to_line(self) -> float | None:
        """Time / (N/BW), with N in bytes of the array; None without a limited NIC."""
        bandwidth = self.topology.bandwidth
        return self.median * bandwidth / self.size if bandwidth else None

    @property
    def bound(self) -> float | None:
        """Minimum time that the NICs need, including headers; None without a limit.

        For reducers max(N/BW, n N/(R BW of a reducer)), with hosted ones the time of
        `reducer.shares`, for others a ring's 2(n-1)/n N/BW, with N in bytes on the wire.
        """
        at = self.topology
        if at.bandwidth is None:
            return None
        line = self.wire_size / at.bandwidth * HEADERS
        if self.contender not in _OVER_REDUCERS:
            return line * at.ring_share
        of_reducers = at.reducers * (at.reducer_bandwidth or at.bandwidth)
        if at.hosted:
            rate = Fraction(at.bandwidth)
            time = least_time(at.workers, rate, at.workers * rate, Fraction(of_reducers))
            return self.wire_size * HEADERS * float(time)
        return line * max(1.0, at.workers * at.bandwidth / of_reducers)

    @property
    def to_bound(self) -> float | None:
        return self.median / self.bound if self.bound else None

    @property
    def reducer_cost(self) -> float | None:
        """CPU seconds of all reducers for 1 GB that they receive."""
        return self._cost(self.reducer_cpu) if self.contender in _OVER_REDUCERS else None

    @property
    def worker_cost(self) -> float:
        """CPU seconds of a worker for 1 GB of its arrays on the wire."""
        return self._cost(self.worker_cpu)

    @property
    def busy(self) -> float | None:
        """Share of all cores; None if all turns were shorter than the kernel's tick of 10 ms."""
        return self.cpu_busy / self.cpu_total if self.cpu_total else None

    def _cost(self, cpu: float) -> float:
        return cpu / (self.wire_size * self.topology.workers * len(self.seconds) / 1e9)


@dataclass
class Run:
    """The results of one command. ``end`` is empty if the run was interrupted."""

    context: Line
    series: list[Series] = field(default_factory=list)
    end: Line = field(default_factory=dict)

    def peer(self, series: Series, contender: str) -> Series | None:
        """The series of another contender in the same case."""
        same = (s for s in self.series if s.case == series.case and s.contender == contender)
        return next(same, None)

    def speed_over(self, series: Series, contender: str) -> float | None:
        """The speed relative to another contender; None if that one did not take part."""
        peer = self.peer(series, contender)
        return peer.median / series.median if peer else None

    def starves(self, series: Series) -> bool:
        """Whether the cores, not the network, limited the time.

        If workers share cores, waiting threads of gloo and MPI take cores from working threads.
        This was seen up to 1 MiB, and wherever the cores are full. A contender whose time is near
        the minimum of the NICs had enough cores.
        """
        if series.to_bound is not None and series.to_bound < _NEAR:
            return False
        small = series.size <= _SMALL and series.topology.workers > self.context["cores"]
        return small or (series.busy or 0.0) >= _FULL

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(series.contender for series in self.series))


def load(path: Path) -> list[Run]:
    """The runs of a file. Raises ResultsError, OSError."""
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            raise ResultsError(f"{path}, line {number}: {error}") from None
    try:
        return collect(lines)
    except (KeyError, ResultsError) as error:
        raise ResultsError(f"{path}: {error!r}; is it a file of bench.allreduce?") from None


def collect(lines: Iterable[Line]) -> list[Run]:
    """Runs in order, with one series for each contender and case."""
    runs: dict[str, Run] = {}
    measured: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line["what"] == "context":
            runs[line["run"]] = Run(line)
        elif line["what"] == "end":
            runs[line["run"]].end = line
        else:
            case = (line["dtype"], line["wire_dtype"], line["bytes"], line["contender"])
            measured.setdefault((line["run"], *case), []).append(line)
    for (run, *_), turns in measured.items():
        if run not in runs:
            raise ResultsError(f"run {run}: no context line")
        runs[run].series.append(_series(turns))
    return list(runs.values())


def _series(turns: Sequence[Line]) -> Series:
    first = turns[0]
    hosts = {item.name: first[item.name] for item in fields(Topology) if item.name in first}
    return Series(
        topology=Topology(**hosts),
        contender=first["contender"],
        size=first["bytes"],
        dtype=first["dtype"],
        wire_dtype=first["wire_dtype"],
        seconds=tuple(seconds for turn in turns for seconds in turn["seconds"]),
        reducer_cpu=sum(turn["reducer_cpu"] for turn in turns),
        worker_cpu=sum(turn["worker_cpu"] for turn in turns),
        nic_sent=sum(turn["nic_sent"] for turn in turns),
        cpu_busy=sum(turn["cpu_busy"] for turn in turns),
        cpu_total=sum(turn["cpu_total"] for turn in turns),
    )
