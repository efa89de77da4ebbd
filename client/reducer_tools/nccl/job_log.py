"""Reads from a job's NCCL_DEBUG=INFO log whether CollNet used the reducers, or why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from reducer_tools.nccl.report import Row, State

_CHECK = "log"
_NET = re.compile(r"Using network (?P<net>\S+)|Assigned NET plugin (?P<plugin>.+?) to comm")
_SETUP = re.compile(r"(\d+) \[(?:send|receive)\] via COLLNET/REDUCER/")
# NCCL up to 2.23 writes the algorithm as a number, without the collective: 2 and 3 are CollNet's.
_CHOICE = re.compile(r"(?:(\w+): )?\d+ Bytes -> Algo (\w+)")
_BY_REDUCERS = {"2", "3", "COLLNET_DIRECT", "COLLNET_CHAIN"}
# Log lines that say why NCCL has no plugin, and what to try. NCCL 2.21 tries the bare name
# "reducer" first and never finds it, so that line does not count.
_LOADING = (
    (
        r"NET/Plugin ?: (?P<why>(?:Could not|Failed to) find.*|dlerror=.*)",
        "`reducer nccl check` on that node says which file is missing",
    ),
    (
        r"NET/Plugin ?: (?P<why>No plugin found(?! \(reducer\)).*)",
        "`reducer nccl check` on that node says which file is missing",
    ),
    (
        r"NET/Plugin ?: (?P<why>Plugin load .*)",
        "`reducer nccl check` on that node",
    ),
    (r"(?P<why>External network plugin .* is unsupported)", "install the plugin of this release"),
    (
        r"NET/REDUCER : (?P<why>the reducers are not used: .*)",
        "`reducer nccl check` on that node says what to set",
    ),
    (
        r"(?P<why>Failed to initialize NET plugin REDUCER)",
        "the plugin's line before this one says why",
    ),
    (r"(?P<why>\bNCCL_NET set by environment to (?!REDUCER\b).*)", "unset NCCL_NET"),
    (r"(?P<why>\bNCCL_COLLNET_ENABLE set by environment to (?!1\b).*)", "NCCL_COLLNET_ENABLE=1"),
)
# Log lines that say why one communicator does not use the plugin. Others of the job may use it.
_GIVING_UP = (
    (
        r"NET/REDUCER : (?P<why>rank \d+ of \d+ cannot use the reducers: .*)",
        "`reducer nccl check` on that node",
    ),
    (
        r"NET/REDUCER : (?P<why>rank \d+ (?:has another list|is of another version).*)",
        "the same on all ranks",
    ),
    (
        r"(?P<why>Cannot initialize CollNet, using point-to-point network instead)",
        "the plugin's line before this one says why",
    ),
    (
        r"(?P<why>CollNet is not supported or fails to initialize.*)",
        "the lines before this one say why",
    ),
    (
        r"(?P<why>Communicator has \d+ nodes which is less than CollNet node threshold.*)",
        "reducers serve communicators of 2 nodes and more",
    ),
    (
        r"(?P<why>CollNet currently only supports up to \d+ GPUs per node.*)",
        "at most 8 GPUs of a node in one communicator",
    ),
    (
        r"(?P<why>Detected mixed local CollNet device counts.*)",
        "the same interfaces on all nodes (NCCL_SOCKET_IFNAME)",
    ),
)


@dataclass
class Reason:
    """The reason of a fallback: the first line that names it, advice, and the number of lines."""

    text: str
    advice: str
    lines: int = 0


@dataclass
class JobLog:
    """The facts that a job's log contains.

    Attributes:
        nccl: whether there is a line of NCCL.
        nets: how often each net was chosen.
        ranks: the ranks that have set up CollNet through the reducers.
        choices: the number of all-reduces by algorithm.
        loading: reasons why NCCL has no plugin.
        giving_up: reasons why a communicator does not use the plugin.
    """

    nccl: bool = False
    nets: Counter[str] = field(default_factory=Counter)
    ranks: set[int] = field(default_factory=set)
    choices: Counter[str] = field(default_factory=Counter)
    loading: dict[str, Reason] = field(default_factory=dict)
    giving_up: dict[str, Reason] = field(default_factory=dict)


def read(lines: Iterable[str]) -> JobLog:
    log = JobLog()
    for line in lines:
        log.nccl |= "NCCL" in line
        if net := _NET.search(line):
            log.nets[net["net"] or net["plugin"]] += 1
        if setup := _SETUP.search(line):
            log.ranks.add(int(setup[1]))
        if (choice := _CHOICE.search(line)) and choice[1] in (None, "AllReduce"):
            log.choices[choice[2].upper()] += 1
        _read_reasons(line, _LOADING, log.loading)
        _read_reasons(line, _GIVING_UP, log.giving_up)
    return log


def _read_reasons(
    line: str, patterns: Iterable[tuple[str, str]], reasons: dict[str, Reason]
) -> None:
    for pattern, advice in patterns:
        if found := re.search(pattern, line):
            reason = reasons.setdefault(pattern, Reason(found["why"].strip(), advice))
            reason.lines += 1


def rows(log: JobLog) -> Iterator[Row]:
    """Report whether CollNet was set up through the reducers, and whether all-reduces used it."""
    if not log.nccl:
        yield Row(_CHECK, "FAILED", "no line of NCCL", "run the job with NCCL_DEBUG=INFO")
        return
    nets = ", ".join(f"{net} ({times}x)" for net, times in log.nets.items()) or "none named"
    if log.ranks:
        yield Row(
            _CHECK, "ok", f"CollNet was set up over REDUCER by {_ranks(log.ranks)}; nets: {nets}"
        )
        yield _choices(log)
    else:
        yield Row(
            _CHECK,
            "FAILED",
            f"no line `via COLLNET/REDUCER`: the job did not use the reducers; nets: {nets}",
            ""
            if log.loading or log.giving_up
            else "NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING",
        )
        yield from (_fallback(reason, "FAILED") for reason in log.loading.values())
    for reason in log.giving_up.values():
        yield _fallback(reason, "note" if log.ranks else "FAILED")


def _fallback(reason: Reason, state: State) -> Row:
    more = f" ({reason.lines} such lines)" if reason.lines > 1 else ""
    return Row(_CHECK, state, reason.text + more, reason.advice)


def _choices(log: JobLog) -> Row:
    taken = sum(n for name, n in log.choices.items() if name in _BY_REDUCERS)
    total = log.choices.total()
    if not total:
        return Row(
            _CHECK,
            "note",
            "the log does not say which all-reduces used CollNet",
            "NCCL_DEBUG_SUBSYS=INIT,NET,TUNING names the algorithm of each",
        )
    others = ", ".join(f"{n} {name}" for name, n in log.choices.items() if name not in _BY_REDUCERS)
    result = f"{taken} of {total} all-reduces in the log went through CollNet"
    return Row(
        _CHECK,
        "ok" if taken else "FAILED",
        f"{result}; others: {others}" if others else result,
        "" if taken else "lower REDUCER_MIN_BYTES, or set NCCL_ALGO (reducer nccl env --force)",
    )


def _ranks(ranks: set[int]) -> str:
    shown = ", ".join(str(rank) for rank in sorted(ranks)[:8])
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{', ...' if len(ranks) > 8 else ''}"
