"""Every Prometheus series of the daemon, declared here and in `table_metrics` (METRICS.md lists
them).

The lanes count; a scrape asks each lane for a snapshot and renders it. This module keeps no
numbers, so the series of a job end with the job. The label of a job is not called `job`, because
Prometheus has a label of that name for every target. A group of a job's workers has its own label,
`JOB#GROUP`, because the group numbers its ranks differently. Labels are bounded: jobs by
--max-total-runs, ranks by MAX_RANKS for each run and by MAX_RANKS_OF_JOB for each job, on each lane
(`reducer.core.measures.ranking`), tables by MAX_TABLES and MAX_TABLES_OF_JOB on each lane
(`reducer.core.table_report`), causes and codes by the code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reducer.core.measures.durations import BOUNDS
from reducer.server.daemon import table_metrics
from reducer.server.daemon.series import Row, Series, family, labelled
from reducer.server.pipe.snapshot import JobNumbers, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# fmt: off
_INFO = Series("version", "reducer_info", "1; release, protocol and mode of the daemon.",
               over="-", labels=("version", "protocol", "mode"))
_KERNEL_INFO = Series("kernels", "reducer_kernel_info",
                      "1; the kernels that sum, and whether the protocol's Python is compiled.",
                      over="-", labels=("impl", "compiled"))
_REFUSED = Series("refused", "reducer_refused_connections",
                  "Connections refused before they could say HELLO, by cause.",
                  "counter", labels=("cause",))
# Every cause is exported from the start as 0; otherwise its first refusal would be no increase.
REFUSAL_CAUSES = {
    "slow": "the preface or the proof did not come in time",
    "garbage": "the preface or the handshake is not what a worker sends",
    "version": "the peer speaks another major version of the protocol",
    "plain": "the worker has no key or certificate, and the reducer requires one",
    "keyless": "the worker asks for mode psk, and the reducer has no key",
    "uncertified": "the worker asks for mode tls, and the reducer has no certificate",
    "forged": "mode psk: the proof is wrong; a worker with another key sends none (`left`)",
    "left": "the peer closed before its proof, as a worker with another key or a port scan does",
    "untrusted": "mode tls: the worker's certificate is from another CA, or it has none",
    "expired": "mode tls: the worker's certificate has expired",
    "distrust": "mode tls: the worker refuses the reducer's certificate or TLS parameters",
    "oversized": "mode tls: too many bytes came before the end of the handshake",
    "crowded": "the oldest peer without a preface or a proof made room for another",
    "busy": "too many connections wait for the lane, or the lane has ended",
    "late": "the lane did not take the connection in time",
    "lane": "the worker asks for a lane that the reducer does not have",
    "descriptors": "the reducer has no file descriptor left",
    "ending": "the reducer is ending",
}
_METRICS_DROPPED = Series("metrics_dropped", "reducer_metrics_dropped_connections",
                          "Connections to the metrics port that were cut off, by cause.",
                          "counter", labels=("cause",))
_RESTARTS = Series("restarts", "reducer_lane_restarts",
                   "Restarts of lanes that died; the runs of such a lane failed over.",
                   "counter", labels=("lane",))
_ERRORS = Series("errors", "reducer_errors",
                 "Sessions refused and runs ended, by the error code that the workers were told.",
                 "counter", labels=("lane", "code"))
_ROUND_SECONDS = Series("round_seconds", "reducer_round_seconds",
                        "Time from a round's first contribution on the lane to its last result.",
                        "histogram", labels=("job_name", "lane"))

_DAEMON_SERIES = labelled((),
    ("ready", "reducer_ready",
     "1 while workers may connect; 0 while the daemon drains or restarts a lane.", "gauge", "-"),
    ("wall_ready", "reducer_start_time_seconds",
     "When the daemon first became ready, in seconds since 1970.", "gauge", "-"),
    ("accepted", "reducer_accepted_connections", "Connections passed to a lane.", "counter"),
    ("dropped_log_lines", "reducer_dropped_log_lines", "Log lines that could not be written.",
     "counter"),
)

_PROCESS_SERIES = labelled(("process",),
    ("cpu_seconds", "reducer_process_cpu_seconds",
     "CPU time of the main process and of each lane. Full load of a lane is 1; in mode tls more.",
     "counter"),
    ("resident_bytes", "reducer_process_resident_bytes", "Resident memory of the process."),
)

_LANE_SERIES = labelled(("lane",),
    ("connections", "reducer_connections", "Connections of workers."),
    ("accepted", "reducer_lane_accepted", "Connections that the lane has taken over.", "counter"),
    ("unpassed", "reducer_lane_unpassed", "Connections lost for lack of descriptors.", "counter"),
    ("turns", "reducer_turns",
     "Times that a job had used up its turn at the lane, and other jobs went first.", "counter"),
    ("slow_readers", "reducer_slow_readers", "Workers disconnected because they do not read.",
     "counter"),
    ("protocol_errors", "reducer_protocol_errors", "Connections closed for breaking the rules.",
     "counter"),
    ("internal_errors", "reducer_internal_errors", "Internal errors; see the log.", "counter"),
    ("held_log_lines", "reducer_held_log_lines",
     "Log lines left out because their job had used up its share of the log.", "counter"),
    ("sessions", "reducer_sessions", "Sessions of workers in the core."),
    ("forming", "reducer_forming_runs", "Runs that wait for ranks to join.", "gauge", "max"),
    ("tables", "reducer_tables", "Tables of which the lane has shards.", "gauge", "max"),
    ("registry_records", "reducer_registry_records",
     "Records in the registry (--registry); lane 0 has them."),
    ("reserved_bytes", "reducer_reserved_bytes", "Memory reserved for the jobs."),
    ("budget_bytes", "reducer_budget_bytes", "Memory that may be reserved (--memory)."),
    ("buffers_out", "reducer_buffers_in_use", "Pool buffers in use."),
    ("buffer_bytes", "reducer_buffer_bytes", "Bytes of the pool buffers in use."),
    ("cached_bytes", "reducer_buffer_cached_bytes", "Bytes of pool buffers kept for reuse."),
    ("allocated", "reducer_buffer_allocations", "Pool buffers that could not be reused.",
     "counter"),
    ("fold_seconds", "reducer_fold_seconds", "Time in the kernels that sum.", "counter"),
    ("loop_lag_seconds", "reducer_loop_lag_seconds", "Recent worst delay of the event loop.",
     "gauge", "max"),
)

_JOB_SERIES = labelled(("job_name", "lane"),
    ("bytes_in", "reducer_job_received_bytes", "Payload received.", "counter"),
    ("bytes_out", "reducer_job_sent_bytes", "Payload sent.", "counter"),
    ("contributions", "reducer_contributions", "Contributions.", "counter"),
    ("results", "reducer_results", "Results sent, counted for each rank.", "counter"),
    ("duplicates", "reducer_duplicates",
     "Contributions dropped as duplicates: retransmissions after a failover or a reconnect.",
     "counter"),
    ("rounds", "reducer_rounds", "Rounds finished on the lane.", "counter", "max"),
    ("refused_rounds", "reducer_refused_rounds", "Rounds whose ranks disagree (MISMATCH).",
     "counter"),
    ("reconnects", "reducer_reconnects", "Ranks that came back on a new connection.", "counter"),
    ("failovers", "reducer_failovers",
     "Reducers that the job's workers have given up; other reducers took over their work.",
     "counter", "max"),
    ("lost_workers", "reducer_lost_workers",
     "Workers without which the job's present run goes on.", "gauge", "max"),
    ("stats_walks", "reducer_stats_walks",
     "Walks over the job's waiting rounds to answer a STATS of its workers.", "counter"),
    ("stats_shared", "reducer_stats_shared",
     "STATS within a heartbeat of a walk, answered with the result of that walk.", "counter"),
    ("open_rounds", "reducer_open_rounds", "Rounds that wait for a rank.", "gauge", "max"),
    ("keys", "reducer_keys", "Keys that the lane remembers.", "gauge", "max"),
    ("held_bytes", "reducer_held_bytes",
     "Buffers held: contributions, and results that a rank may still ask for."),
    ("parked_bytes", "reducer_parked_bytes",
     "Buffers held of contributions that wait for contributions of lower ranks."),
    ("record_bytes", "reducer_record_bytes",
     "Memory charged for records of the job's runs: keys, names, rounds (--records)."),
    ("world_size", "reducer_world_size", "Ranks of the job.", "gauge", "max"),
)

# From the report that `reducer status` shows, by run. Runs with one title are combined.
_RUN_SERIES = labelled(("job_name", "lane"),
    ("connected", "reducer_connected_ranks", "Ranks that are connected to the lane.", "gauge",
     "max"),
    ("oldest_seconds", "reducer_oldest_round_seconds",
     "Time since the first contribution of the oldest open round; 0 if no round is open.",
     "gauge", "max"),
)

# By rank: for each job and lane the ranks with the largest numbers
# (`reducer.core.measures.ranking.most`).
_RANK_SERIES = labelled(("job_name", "lane", "rank"),
    ("late", "reducer_last_rank", "Rounds in which the rank was last.", "counter", "max"),
    ("lateness", "reducer_rank_lateness_seconds",
     "Time in which at least half of the ranks were waiting for this rank.", "counter", "max"),
    ("nonfinite", "reducer_nonfinite_contributions",
     "Chunks to which the rank contributed NaN or Inf, and no lower rank did.", "counter"),
)
# fmt: on


def catalogue() -> tuple[Series, ...]:
    """Every series of a scrape, in the order of the scrape."""
    return (
        _INFO, _KERNEL_INFO, *_DAEMON_SERIES, _REFUSED, _METRICS_DROPPED, _RESTARTS,
        *_PROCESS_SERIES, *_LANE_SERIES, _ERRORS, *_JOB_SERIES, *_RUN_SERIES, _ROUND_SECONDS,
        *_RANK_SERIES, *table_metrics.SERIES,
    )  # fmt: skip


def render(snapshot: Snapshot) -> bytes:
    """The text exposition of ``snapshot``."""
    return generate_latest(_SnapshotCollector(snapshot))


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from self._daemon()
        for series in _PROCESS_SERIES:
            yield family(series, self._process_rows(series.field))
        for series in _LANE_SERIES:
            yield family(series, self._lane_rows(series.field))
        yield family(_ERRORS, self._error_rows())
        for series in _JOB_SERIES:
            yield family(series, self._job_rows(series.field))
        for series in _RUN_SERIES:
            yield family(series, self._run_rows(series))
        yield self._round_seconds()
        for series in _RANK_SERIES:
            yield family(series, self._rank_rows(series.field))
        yield from table_metrics.collect(self._snapshot)

    def _daemon(self) -> Iterator[Metric]:
        found = self._snapshot
        yield family(_INFO, [((found.version, found.protocol, found.mode), 1)])
        kinds = {(lane.numbers.kernels, str(lane.numbers.compiled).lower()) for lane in found.lanes}
        yield family(_KERNEL_INFO, [(kind, 1) for kind in sorted(kinds)])
        dropped = found.dropped_log_lines
        dropped += sum(lane.numbers.dropped_log_lines for lane in found.lanes)
        numbers = {
            "ready": found.ready,
            "wall_ready": found.wall_ready,
            "accepted": found.accepted,
            "dropped_log_lines": dropped,
        }
        for series in _DAEMON_SERIES:
            yield family(series, [((), numbers[series.field])])
        refused = {**dict.fromkeys(REFUSAL_CAUSES, 0), **found.refused}
        yield family(_REFUSED, [((cause,), n) for cause, n in sorted(refused.items())])
        yield family(_METRICS_DROPPED, [((c,), n) for c, n in found.metrics_dropped.items()])
        yield family(_RESTARTS, [((str(lane),), n) for lane, n in found.restarts.items()])

    def _process_rows(self, field: str) -> Iterator[Row]:
        yield ("main",), getattr(self._snapshot.usage, field)
        for lane in self._snapshot.lanes:
            yield (f"lane-{lane.numbers.lane}",), getattr(lane.numbers, field)

    def _lane_rows(self, field: str) -> Iterator[Row]:
        for lane in self._snapshot.lanes:
            numbers = lane.numbers
            part = numbers if hasattr(numbers, field) else numbers.core
            yield (str(numbers.lane),), getattr(part, field)

    def _error_rows(self) -> Iterator[Row]:
        for lane in self._snapshot.lanes:
            for code, count in sorted(lane.numbers.core.errors.items()):
                yield (str(lane.numbers.lane), code), count

    def _jobs(self) -> Iterator[tuple[tuple[str, str], JobNumbers]]:
        for lane in self._snapshot.lanes:
            for name, job in lane.jobs.items():
                yield (name, str(lane.numbers.lane)), job

    def _job_rows(self, field: str) -> Iterator[Row]:
        for labels, job in self._jobs():
            yield labels, getattr(job if field == "world_size" else job.numbers, field)

    def _run_rows(self, series: Series) -> Iterator[Row]:
        found: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for lane in self._snapshot.lanes:
            for run in lane.runs:
                found[run.title, str(lane.numbers.lane)].append(getattr(run, series.field))
        for labels, numbers in found.items():
            yield labels, max(numbers)

    def _round_seconds(self) -> Metric:
        series = _ROUND_SECONDS
        found = HistogramMetricFamily(series.name, series.help, labels=series.labels)
        ends = [*map(str, BOUNDS), "+Inf"]
        for labels, job in self._jobs():
            counts = [0] * len(ends)
            for place, count in job.numbers.round_counts:  # several times if runs share a title
                counts[int(place)] += int(count)
            buckets = list(zip(ends, accumulate(counts), strict=True))
            found.add_metric(labels, buckets, job.numbers.round_seconds)
        return found

    def _rank_rows(self, field: str) -> Iterator[Row]:
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for (title, lane), job in self._jobs():
            # A rank comes several times if runs share a title.
            for rank, value in getattr(job.numbers, field):
                found[title, lane, str(rank)] += value
        yield from found.items()
