"""Every Prometheus series of the daemon, declared here and nowhere else.

The lanes count; a scrape asks each of them for a snapshot and renders it. Nothing is kept here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Row = tuple[tuple[str, ...], float]


@dataclass(frozen=True)
class Snapshot:
    """The daemon's numbers at one moment; ``lanes`` as `reducer.server.lane` reports them."""

    version: str
    ready: bool
    accepted: int
    refused: Mapping[str, int]
    dropped_log_lines: int
    lanes: list[dict[str, Any]]


@dataclass(frozen=True)
class _Series:
    """One family; ``field`` names the number in a lane's or a job's part of the snapshot."""

    field: str
    name: str
    help: str
    family: Callable[..., Any] = GaugeMetricFamily


_JOB_SERIES = (
    _Series("bytes_in", "reducer_job_received_bytes", "Payload received.", CounterMetricFamily),
    _Series("bytes_out", "reducer_job_sent_bytes", "Payload sent.", CounterMetricFamily),
    _Series("contributions", "reducer_contributions", "Contributions.", CounterMetricFamily),
    _Series("results", "reducer_results", "Results sent to a rank.", CounterMetricFamily),
    _Series(
        "duplicates", "reducer_duplicates", "Contributions dropped as copies.", CounterMetricFamily
    ),
    _Series("rounds", "reducer_rounds", "Rounds finished on the lane.", CounterMetricFamily),
    _Series("open_rounds", "reducer_open_rounds", "Rounds that wait for a rank."),
    _Series("keys", "reducer_keys", "Keys that the lane remembers."),
    _Series("held_bytes", "reducer_held_bytes", "Payload held for contributions and results."),
    _Series("world_size", "reducer_world_size", "Ranks of the job."),
)

# By rank; of each job and lane the ranks with the largest numbers: `reducer.core.ranking.most`.
_RANK_SERIES = (
    _Series(
        "late", "reducer_last_rank", "Rounds in which the rank was last.", CounterMetricFamily
    ),
    _Series(
        "lateness", "reducer_rank_lateness_seconds",
        "Time in which half of the ranks had sent what this rank had not.", CounterMetricFamily,
    ),
    _Series(
        "nonfinite",
        "reducer_nonfinite_contributions",
        "Chunks of which the rank was the first to contribute NaN or Inf.",
        CounterMetricFamily,
    ),
)  # fmt: skip

_LANE_SERIES = (
    _Series("connections", "reducer_connections", "Connections of workers."),
    _Series("accepted", "reducer_lane_accepted", "Connections taken over.", CounterMetricFamily),
    _Series(
        "unpassed", "reducer_lane_unpassed", "Connections lost for lack of descriptors.",
        CounterMetricFamily,
    ),
    _Series(
        "slow_readers", "reducer_slow_readers", "Workers disconnected because they do not read.",
        CounterMetricFamily,
    ),
    _Series(
        "protocol_errors", "reducer_protocol_errors", "Connections closed for breaking the rules.",
        CounterMetricFamily,
    ),
    _Series(
        "internal_errors", "reducer_internal_errors", "Bugs of ours, see the log.",
        CounterMetricFamily,
    ),
    _Series("sessions", "reducer_sessions", "Sessions of workers in the core."),
    _Series("forming", "reducer_forming_runs", "Runs that wait for ranks to join."),
    _Series("reserved_bytes", "reducer_reserved_bytes", "Memory reserved for the jobs."),
    _Series("budget_bytes", "reducer_budget_bytes", "Memory that may be reserved."),
    _Series("buffers_out", "reducer_buffers_in_use", "Pool buffers in use."),
    _Series("buffer_bytes", "reducer_buffer_bytes", "Bytes of the pool buffers in use."),
    _Series("cached_bytes", "reducer_buffer_cached_bytes", "Bytes of pool buffers kept for reuse."),
    _Series(
        "allocated",
        "reducer_buffer_allocations",
        "Pool buffers that could not be reused.",
        CounterMetricFamily,
    ),
    _Series("loop_lag_seconds", "reducer_loop_lag_seconds", "Recent worst delay of the loop."),
)  # fmt: skip


def render(snapshot: Snapshot) -> bytes:
    """The text exposition of ``snapshot``."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from self._daemon()
        for series in _LANE_SERIES:
            yield _family(series, ("lane",), self._lane_rows(series.field))
        for series in _JOB_SERIES:
            yield _family(series, ("job", "lane"), self._job_rows(series.field))
        for series in _RANK_SERIES:
            yield _family(series, ("job", "lane", "rank"), self._rank_rows(series.field))

    def _daemon(self) -> Iterator[Metric]:
        found = self._snapshot
        info = GaugeMetricFamily("reducer_info", "Version.", labels=("version",))
        info.add_metric((found.version,), 1)
        yield info
        kernel = GaugeMetricFamily("reducer_kernel_info", "Kernel set in use.", labels=("impl",))
        for impl in sorted({lane["kernels"] for lane in found.lanes}):
            kernel.add_metric((impl,), 1)
        yield kernel
        yield GaugeMetricFamily("reducer_ready", "1 while workers may connect.", value=found.ready)
        yield CounterMetricFamily(
            "reducer_accepted_connections", "Connections passed to a lane.", value=found.accepted
        )
        refused = CounterMetricFamily(
            "reducer_refused_connections", "Connections refused, by cause.", labels=("cause",)
        )
        for cause, count in sorted(found.refused.items()):
            refused.add_metric((cause,), count)
        yield refused
        dropped = found.dropped_log_lines + sum(lane["dropped_log_lines"] for lane in found.lanes)
        yield CounterMetricFamily(
            "reducer_dropped_log_lines", "Log lines that could not be written.", value=dropped
        )

    def _lane_rows(self, field: str) -> Iterator[Row]:
        for lane in self._snapshot.lanes:
            yield (str(lane["lane"]),), lane[field] if field in lane else lane["core"][field]

    def _jobs(self) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        for lane in self._snapshot.lanes:
            for name, job in lane["core"]["jobs"].items():
                yield (name, str(lane["lane"])), job

    def _job_rows(self, field: str) -> Iterator[Row]:
        for labels, job in self._jobs():
            yield labels, job[field]

    def _rank_rows(self, field: str) -> Iterator[Row]:
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for (job, lane), numbers in self._jobs():
            for rank, value in numbers[field]:  # a rank comes twice if two runs share a name
                found[job, lane, str(rank)] += value
        yield from found.items()


def _family(series: _Series, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = series.family(series.name, series.help, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    assert isinstance(family, Metric)
    return family
