"""`reducer nccl env`: the variables that make an NCCL of some version use the plugin."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reducer.cluster.discovery import find_addresses
from reducer_tools.nccl.installed import is_on_default_path
from reducer_tools.nccl.versions import (
    Version,
    forced_algorithm,
    tables,
    takes_paths,
    tuner_needs_variable,
    tuners,
)


@dataclass(frozen=True)
class Variable:
    """A variable to set, and the reason. ``value`` is empty if only the user knows it."""

    name: str
    value: str
    why: str


def to_set(
    version: Version, plugin: Path, addresses: str, force: bool, environment: Mapping[str, str]
) -> list[Variable]:
    """The variables to set, in the order in which they are printed.

    Raises ClusterError if a variable in ``environment`` names reducers wrongly.
    """
    found = [
        Variable("NCCL_NET_PLUGIN", "reducer", f"NCCL loads {plugin.name} as its net"),
        Variable("NCCL_COLLNET_ENABLE", "1", "off by default; without it the plugin declines"),
        *_library_path(plugin, environment),
        *_addresses(addresses, environment),
    ]
    if tuner_needs_variable(version):
        why = "2.19 and 2.20 look for a tuner here; the plugin is one"
        found.append(Variable("NCCL_TUNER_PLUGIN", plugin.name, why))
    if force:
        algorithm = forced_algorithm(version)
        found.append(Variable("NCCL_ALGO", algorithm, "for all-reduces of every size"))
    return [*found, Variable("NCCL_DEBUG", "INFO", "the log says whether the reducers are used")]


def _library_path(plugin: Path, environment: Mapping[str, str]) -> Iterator[Variable]:
    if is_on_default_path(plugin):
        return
    folder = str(plugin.parent)
    before = [part for part in environment.get("LD_LIBRARY_PATH", "").split(":") if part]
    value = ":".join([folder, *(part for part in before if part != folder)])
    yield Variable("LD_LIBRARY_PATH", value, "the folder of the plugin first")


def _addresses(given: str, environment: Mapping[str, str]) -> Iterator[Variable]:
    why = "all reducers; the same list in the same order on all ranks"
    found = None if given else find_addresses(environment)
    if found is None or found.source == "REDUCER_ADDRS":
        value = ",".join(found.value) if found else given
        yield Variable("REDUCER_ADDRS", value, why)


def notes(version: Version, force: bool) -> list[str]:
    """The properties of this version, as sentences without their subject, "NCCL"."""
    newest = tables(version)[0]
    found = [f"takes the tables v{newest} of the plugin"]
    if not tuners(version):
        found.append(
            "has no tuner (2.19 has): its own cost model decides which all-reduces go through "
            "the reducers" + ("" if force else "; --force sends all")
        )
    if not takes_paths(version):
        found.append("takes a name in NCCL_NET_PLUGIN, not a path (2.21 takes both)")
    return [*found, "needs 2 nodes or more in a communicator, and at most 8 GPUs of each"]


def as_text(title: Sequence[str], lines: Sequence[Variable]) -> str:
    """The assignments, one per line, each followed by its reason as a comment."""
    shown = [(f"{line.name}={shlex.quote(line.value)}", line) for line in lines if line.value]
    width = max(len(text) for text, _ in shown if len(text) <= 60)
    out = [f"# {line}" for line in title]
    out += [f"{text:<{width}}  # {line.why}" for text, line in shown]
    out += [f"# {line.name}=...: {line.why}" for line in lines if not line.value]
    return "\n".join(out)


def as_shell(lines: Sequence[Variable]) -> str:
    """One export command for each variable that has a value, for eval in a shell."""
    known = (line for line in lines if line.value)
    return "\n".join(f"export {line.name}={shlex.quote(line.value)}" for line in known)
