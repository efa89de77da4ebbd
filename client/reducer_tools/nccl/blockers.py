"""Finds variables that keep NCCL from using the reducers; loads no library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reducer_tools.nccl.installed import PLUGIN
from reducer_tools.nccl.report import Row
from reducer_tools.nccl.versions import (
    Version,
    forced_algorithm,
    takes_functions,
    tuner_needs_variable,
    tuners,
)

NET = "REDUCER"
_COLLNET = {"collnetchain", "collnetdirect"}
_CHECK = "environment"
_SHOWN = ("NCCL_NET_PLUGIN", "NCCL_COLLNET_ENABLE", "NCCL_NET", "NCCL_ALGO", "NCCL_PROTO")


def environment_rows(environment: Mapping[str, str], version: Version) -> list[Row]:
    """One row for each problem, or one good row if nothing fails."""
    rows = [
        *_collnet(environment),
        *_net(environment),
        *_algorithm(environment, version),
        *_tuner(environment, version),
    ]
    if any(row.state == "FAILED" for row in rows):
        return rows
    given = [f"{name}={environment[name]}" for name in _SHOWN if name in environment]
    return [Row(_CHECK, "ok", " ".join(given)), *rows]


def _collnet(environment: Mapping[str, str]) -> Iterator[Row]:
    enabled = environment.get("NCCL_COLLNET_ENABLE")
    if enabled != "1":
        got = "is unset" if enabled is None else f"is {enabled!r}"
        yield Row(
            _CHECK,
            "FAILED",
            f"NCCL_COLLNET_ENABLE {got}: NCCL does not ask for CollNet, and the plugin declines",
            "export NCCL_COLLNET_ENABLE=1",
        )


def _net(environment: Mapping[str, str]) -> Iterator[Row]:
    net = environment.get("NCCL_NET", "")
    if net and net.upper() != NET:
        yield Row(
            _CHECK,
            "FAILED",
            f"NCCL_NET={net} selects another net, and NCCL takes CollNet only from the library "
            "whose net it uses",
            f"unset NCCL_NET, or NCCL_NET={NET}",
        )


def _algorithm(environment: Mapping[str, str], version: Version) -> Iterator[Row]:
    algorithm, forced = environment.get("NCCL_ALGO", ""), forced_algorithm(version)
    if algorithm and not _allows(algorithm):
        yield Row(
            _CHECK,
            "FAILED",
            f"NCCL_ALGO={algorithm} leaves CollNet out of all-reduces",
            f"unset NCCL_ALGO, or NCCL_ALGO={forced}",
        )
    elif takes_functions(version) and algorithm.lower() in _COLLNET:
        yield Row(
            _CHECK,
            "note",
            f"NCCL_ALGO={algorithm} leaves collectives other than all-reduce without an algorithm "
            f"in NCCL {version}: they may fail",
            f"NCCL_ALGO={forced}",
        )
    protocol = environment.get("NCCL_PROTO", "")
    if protocol and not _permits(protocol, {"simple"}):
        yield Row(
            _CHECK,
            "FAILED",
            f"NCCL_PROTO={protocol}: CollNet has no protocol but Simple",
            "unset NCCL_PROTO",
        )


def _tuner(environment: Mapping[str, str], version: Version) -> Iterator[Row]:
    """Note if neither NCCL_ALGO nor the plugin's tuner chooses the reducers for all-reduces."""
    if environment.get("NCCL_ALGO"):
        return
    given = environment.get("NCCL_TUNER_PLUGIN", "")
    ours = given.endswith(PLUGIN)
    if not tuners(version):
        why = f"NCCL {version} has no tuner"
    elif tuner_needs_variable(version) and not ours:
        why = f"NCCL {version} looks for a tuner only in NCCL_TUNER_PLUGIN"
    elif given and not ours:
        why = f"NCCL_TUNER_PLUGIN={given} is another tuner than the plugin's"
    else:
        return
    named = f"NCCL_TUNER_PLUGIN={PLUGIN}, or " if tuners(version) else ""
    yield Row(
        _CHECK,
        "note",
        f"{why}: NCCL's own cost model decides which all-reduces go through CollNet, perhaps none",
        f"{named}NCCL_ALGO={forced_algorithm(version)}, which sends all",
    )


def _allows(algorithms: str) -> bool:
    """Whether NCCL_ALGO permits one of CollNet's algorithms for all-reduces.

    The value is a sequence of lists. A list with ``name:`` in front is for that function, a list
    without for all functions.
    """
    allowed = True
    for part in algorithms.split(";"):
        function, _, names = part.rpartition(":")
        if function.strip().lower() in ("", "allreduce"):
            allowed = _permits(names, _COLLNET)
    return allowed


def _permits(names: str, wanted: set[str]) -> bool:
    """Whether a list of names permits one of ``wanted``. A leading ``^`` means all but these."""
    negative = names.strip().startswith("^")
    listed = {name.strip().lower() for name in names.strip().lstrip("^").split(",")}
    return bool(wanted - listed) if negative else bool(wanted & listed)
