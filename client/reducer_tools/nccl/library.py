"""Finds out which library NCCL loads as its net in an environment, and which tables it uses."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from reducer_tools.nccl.blockers import NET
from reducer_tools.nccl.installed import PLUGIN
from reducer_tools.nccl.probe import Opened, foreign, open_all
from reducer_tools.nccl.report import Row
from reducer_tools.nccl.versions import Version, library_names, tables, tuners

_WANTED = "export NCCL_NET_PLUGIN=reducer"


@dataclass(frozen=True)
class Library:
    """The path of the plugin that NCCL loads, and the versions of the tables that NCCL uses."""

    path: Path
    net: int
    coll: int


def find_library(
    environment: Mapping[str, str], version: Version
) -> tuple[list[Row], Library | None]:
    """Choose the library and the tables as NCCL does, with the rows that report the choice.

    None if NCCL loads no plugin or another plugin. The last row then says why.
    """
    plugin = environment.get("NCCL_NET_PLUGIN")
    given = "NCCL_NET_PLUGIN is unset" if plugin is None else f"NCCL_NET_PLUGIN={plugin}"
    tried = _open(library_names(plugin, version))
    opened = next((one for one in tried if one.path), None)
    if opened is None:
        why, advice = _missing(tried, environment)
        return [Row("library", "FAILED", f"{given}: {why}", advice)], None
    if opened.plugin != NET:
        what = f"the net {opened.plugin!r}" if opened.plugin else "no net plugin"
        text = f"{given}: NCCL takes {opened.path}, which is {what}"
        return [Row("library", "FAILED", text, _WANTED)], None
    row, library = _tables(opened, version)
    return [Row("library", "ok", f"{given}: {opened.path}"), row], library


def _open(names: list[str]) -> list[Opened]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(open_all, names).result()
        except BrokenProcessPool:
            return [Opened(name, error=f"{name} ends the process that loads it") for name in names]


def _missing(tried: Sequence[Opened], environment: Mapping[str, str]) -> tuple[str, str]:
    """(why no library could be loaded, what to try)."""
    if not tried:
        return "NCCL loads no plugin", _WANTED
    for one in tried:
        if misfit := foreign(one.name, environment):
            return misfit, "install the build for this machine"
    for one in tried:
        if "No such file" not in one.error:
            return one.error, "install a build that was made for this system"
    names = ", then ".join(one.name for one in tried)
    if not any(one.name.endswith(PLUGIN) for one in tried):
        return f"NCCL looks for {names}, and there is none", _WANTED
    path = environment.get("LD_LIBRARY_PATH") or "unset"
    return (
        f"NCCL looks for {names}, and the loader finds none; LD_LIBRARY_PATH: {path}",
        "`reducer nccl env` finds the plugin, or says how to build and install it",
    )


def _tables(opened: Opened, version: Version) -> tuple[Row, Library | None]:
    net, coll = (_first(has, version) for has in (opened.net, opened.coll))
    if not net or not coll:
        known = ", ".join(f"v{table}" for table in tables(version)) or "none"
        missing = "ncclNet" if not net else "ncclCollNet"
        text = f"no table {missing} that NCCL {version} knows ({known})"
        return Row("tables", "FAILED", text, "install the plugin of this release"), None
    tuner = next((table for table in tuners(version) if table in opened.tuner), 0)
    text = f"NCCL {version} takes ncclNet v{net}, ncclCollNet v{coll}"
    text += f" and the tuner v{tuner}" if tuner else "; it has no tuner"
    return Row("tables", "ok", text), Library(Path(opened.path), net, coll)


def _first(has: Sequence[int], version: Version) -> int:
    """The first table version that NCCL looks for and the library has; 0 if there is none."""
    return next((table for table in tables(version) if table in has), 0)
