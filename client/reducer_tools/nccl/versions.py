"""The plugin tables that each release of NCCL uses, and the names of the libraries that it loads.

The facts are from the sources of NCCL 2.18 to 2.32. A later release is treated like the latest.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Version(NamedTuple):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST = Version(2, 18)
NEWEST = Version(2, 32, 3)
# (first release, versions of the tables of the net and of CollNet that it looks for, in order).
_TABLES = (
    (Version(2, 30), (12, 11, 10, 9, 8, 7, 6)),
    (Version(2, 28), (11, 10, 9, 8, 7, 6)),
    (Version(2, 26), (10, 9, 8, 7, 6)),
    (Version(2, 24), (9, 8, 7, 6, 5)),
    (Version(2, 20), (8, 7, 6, 5)),
    (Version(2, 19), (7, 6, 5)),
    (OLDEST, (6, 5, 4)),
)
_TUNERS = (
    (Version(2, 30), (6, 5, 4, 3, 2)),
    (Version(2, 28), (5, 4, 3, 2)),
    (Version(2, 24), (4, 3, 2)),
    (Version(2, 22), (3, 2)),
    (Version(2, 21), (2,)),
    (Version(2, 19), (1,)),
)
_TUNER_OF_NET = Version(2, 21)
_LITERAL_NAMES = Version(2, 21)
_ALGORITHMS_BY_FUNCTION = Version(2, 24)
_LISTS = Version(2, 27)
_NONE = Version(2, 28)


def parse_version(text: str) -> Version:
    """Parse ``2.27.5``, ``2.27``, or the number that ncclGetVersion returns. Raises ValueError."""
    text = text.strip()
    dotted = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:[-+].*)?", text)
    if dotted:
        return Version(int(dotted[1]), int(dotted[2]), int(dotted[3] or 0))
    if re.fullmatch(r"\d{4,6}", text):
        return from_code(int(text))
    raise ValueError(f"NCCL version {text!r}: expected one such as 2.27.5")


def from_code(code: int) -> Version:
    """The version for the number that ncclGetVersion returns. Since 2.9 a part has two digits.

    >>> str(from_code(22705)), str(from_code(2708))
    ('2.27.5', '2.7.8')
    """
    major = 10_000 if code >= 10_000 else 1_000
    return Version(code // major, code % major // 100, code % 100)


def refusal(version: Version) -> str:
    """Why the plugin cannot serve this release; "" if it can."""
    if version >= OLDEST:
        return ""
    return (
        f"NCCL {version} knows none of the plugin's tables: expected {OLDEST.major}."
        f"{OLDEST.minor} or later, which newer wheels of the framework contain"
    )


def tables(version: Version) -> tuple[int, ...]:
    """The versions of the net and CollNet tables that a release looks for, in order."""
    return next((found for first, found in _TABLES if version >= first), ())


def tuners(version: Version) -> tuple[int, ...]:
    """The versions of the tuner's table that a release looks for, in order; empty if none.

    A tuner chooses the algorithm of each all-reduce. Without a tuner NCCL's own cost model chooses,
    which knows nothing about reducers.
    """
    return next((found for first, found in _TUNERS if version >= first), ())


def tuner_needs_variable(version: Version) -> bool:
    """Whether a release finds a tuner only by NCCL_TUNER_PLUGIN, not in the net plugin."""
    return bool(tuners(version)) and version < _TUNER_OF_NET


def forced_algorithm(version: Version) -> str:
    """The value of NCCL_ALGO that sends all-reduces of every size through CollNet.

    Since 2.24 the form without a function leaves the other collectives without an algorithm, which
    is an error.
    """
    return "allreduce:collnetchain" if version >= _ALGORITHMS_BY_FUNCTION else "CollNetChain"


def takes_functions(version: Version) -> bool:
    """Whether NCCL_ALGO may name a function before its algorithms (allreduce:collnetchain)."""
    return version >= _ALGORITHMS_BY_FUNCTION


def takes_paths(version: Version) -> bool:
    """Whether NCCL_NET_PLUGIN may be the path of a file."""
    return version >= _LITERAL_NAMES


def library_names(plugin: str | None, version: Version) -> list[str]:
    """The names that a release passes to dlopen, in order, for a value of NCCL_NET_PLUGIN."""
    if version >= _LISTS:
        if plugin is None:
            return ["libnccl-net.so"]
        wanted = (
            []
            if version >= _NONE and plugin.lower() == "none"
            else [part for part in plugin.split(",") if part]
        )
        return [name for part in wanted for name in _both_names(part)]
    if not plugin:
        return ["libnccl-net.so"]
    named = f"libnccl-net-{plugin}.so"
    return [plugin, named] if takes_paths(version) else [named]


def _both_names(plugin: str) -> list[str]:
    whole = "/" in plugin or (plugin.startswith("lib") and plugin.endswith(".so"))
    return [plugin] if whole else [plugin, f"libnccl-net-{plugin}.so"]
