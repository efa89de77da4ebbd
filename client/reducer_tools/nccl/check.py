"""`reducer nccl check`: runs all steps from finding NCCL to the reducers' byte counters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reducer.status.amounts import amount
from reducer_tools.nccl import job_log, rdma
from reducer_tools.nccl.advice import explain
from reducer_tools.nccl.blockers import environment_rows
from reducer_tools.nccl.counters import Counted, count_until
from reducer_tools.nccl.installed import NotFoundError, find_nccl
from reducer_tools.nccl.library import Library, find_library
from reducer_tools.nccl.rank import SUMMED, RankSpec, StepResult, payload
from reducer_tools.nccl.report import Report
from reducer_tools.nccl.trial import Trial, TrialError, start_trial
from reducer_tools.nccl.versions import NEWEST, Version, refusal

# Seconds for starting processes and summing arrays.
_SLACK = 60.0
_COUNT_SECONDS = 3.0


@dataclass(frozen=True)
class CheckOptions:
    """Options of a check."""

    version: Version | None
    ranks: int
    size: int
    log: Path | None


def check(options: CheckOptions, environment: Mapping[str, str]) -> Report:
    """Run all steps and report each as a row. A step is skipped if a step that it needs failed."""
    report = Report()
    version = _nccl(report, options.version, environment)
    report.rows += [*environment_rows(environment, version), *rdma.rows()]
    rows, library = find_library(environment, version)
    report.rows += rows
    if library is not None:
        _try(report, options, library, _patience(environment))
    if options.log is not None:
        with options.log.open(errors="replace") as file:
            report.rows += job_log.rows(job_log.read(file))
    return report


def _nccl(report: Report, given: Version | None, environment: Mapping[str, str]) -> Version:
    if given is not None:
        version, where = given, "as --version says"
    else:
        try:
            first, *others = find_nccl(environment)
        except NotFoundError as error:
            report.add("nccl", "unknown", str(error), f"this check goes on as for {NEWEST}")
            return NEWEST
        version, where = first.version, str(first.path)
        for other in others:
            text = f"{other.version} is at {other.path}, too"
            report.add("nccl", "note", text, "does the job load this one? --version")
    refused = refusal(version)
    report.add("nccl", "FAILED" if refused else "ok", refused or f"{version}, {where}")
    return version


def _patience(environment: Mapping[str, str]) -> float:
    """The timeout of a step in seconds. Connecting is the longest step."""
    try:
        return float(environment["REDUCER_CONNECT_TIMEOUT"]) + _SLACK
    except (KeyError, ValueError):  # the plugin refuses a bad value itself
        return _SLACK


def _try(report: Report, options: CheckOptions, library: Library, seconds: float) -> None:
    specs = [
        RankSpec(library.path, library.net, library.coll, rank, options.ranks, options.size)
        for rank in range(options.ranks)
    ]
    try:
        with start_trial(specs, seconds) as trial:
            _run_steps(report, options, trial)
    except TrialError as error:
        culprit = error.culprit
        report.lines = list(culprit.lines)
        report.add(error.step, "FAILED", *explain(culprit))


def _run_steps(report: Report, options: CheckOptions, trial: Trial) -> None:
    reducers = _search_log(r": reducers at (\S+)$", trial.init()).split(",")
    report.add("init", "ok", f"the plugin is ready; reducers: {', '.join(reducers)}")
    run = _search_log(r"as run '([^']+)'", trial.connect())
    report.add("connect", "ok", f"{options.ranks} ranks met at {len(reducers)} reducers: run {run}")
    results = trial.all_reduce()
    report.lines = list(results[0].lines)
    _sums(report, options, results)
    expected = options.ranks * payload(options.size)
    counted = count_until(reducers, run, expected, _COUNT_SECONDS)
    _bytes(report, reducers, counted, expected)
    trial.close()


def _search_log(pattern: str, results: Sequence[StepResult]) -> str:
    """The first group of ``pattern`` in the plugin's log lines of any rank.

    Raises TrialError if no line matches.
    """
    for _, text in (line for one in results for line in one.lines):
        if found := re.search(pattern, text):
            return found[1]
    why = f"the plugin logged no line with {pattern!r}: it is older than this command"
    raise TrialError(results[0].step, [replace(results[0], error=why)])


def _sums(report: Report, options: CheckOptions, results: Sequence[StepResult]) -> None:
    wrong = {dtype: sum(one.value[dtype] for one in results) for dtype in SUMMED}
    what = f"{amount(payload(options.size))} of {' and '.join(SUMMED)} on {options.ranks} ranks"
    if any(wrong.values()):
        bad = ", ".join(f"{count} of {dtype}" for dtype, count in wrong.items() if count)
        advice = "report it with the plugin's and the reducers' logs"
        report.add("all-reduce", "FAILED", f"{what}: wrong elements: {bad}", advice)
    else:
        report.add("all-reduce", "ok", f"{what}: every element is right")


def _bytes(report: Report, asked: Sequence[str], counted: Counted, expected: int) -> None:
    moved = f"received {amount(counted.received)} and sent {amount(counted.sent)}"
    text = f"the reducers {moved}; expected {amount(expected)} each"
    if min(counted.received, counted.sent) >= expected > 0:
        report.moved = True
        report.add("bytes", "ok", text)
    elif counted.unanswered:
        why = "; ".join(counted.unanswered.values())
        seen = f"{text}; no answer from" if counted.received else "no counters:"
        advice = (
            "the reducers tell their counters on their metrics ports, which are on loopback "
            "without `reducer serve --metrics-host`"
        )
        report.add("bytes", "unknown", f"{seen} {why}", advice)
    else:
        advice = f"does something between here and {', '.join(asked)} answer in their place?"
        report.add("bytes", "FAILED", text, advice)
