"""What NCCL's log (NCCL_DEBUG=INFO) says beside what `reducer_tools.nccl.job_log` reads in it."""

from __future__ import annotations

import re
from typing import NamedTuple

# NCCL 2.21 says of each name that it tries that there is no such file: of the last one it matters.
_COMPLAINT = re.compile(
    r"NET/Plugin ?:.*(?:Failed to find|No plugin found \(libnccl-net|Could not find|cannot open)"
)
_NET = re.compile(r"\[(?:send|receive)\] via NET/([^/]+)/")
# NCCL 2.20 to 2.23 give the number of the algorithm, later ones its name; earlier ones say nothing.
_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
_NUMBERS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")


class Choice(NamedTuple):
    """Which way NCCL took for one collective of so many bytes."""

    bytes: int
    algorithm: str  # as in NCCL_ALGO, in small letters


def complaints(log: str) -> list[str]:
    """Lines that say why a net plugin is not used."""
    return [line for line in log.splitlines() if _COMPLAINT.search(line)]


def nets(log: str) -> set[str]:
    """Names of the nets that channels between two ranks were set up over."""
    return set(_NET.findall(log))


def choices(log: str) -> list[Choice]:
    """In order; rank 0 alone logs them (NCCL_DEBUG_SUBSYS with TUNING)."""
    return [Choice(int(m[1]), _algorithm(m[2])) for m in _CHOICE.finditer(log)]


def _algorithm(text: str) -> str:
    return _NUMBERS[int(text)] if text.isdigit() else text.lower().replace("_", "")
