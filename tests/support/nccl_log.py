"""Reads facts in NCCL's log (NCCL_DEBUG=INFO) that `reducer_tools.nccl.job_log` does not read."""

from __future__ import annotations

import re
from typing import NamedTuple

# NCCL 2.21 logs "no such file" for each name that it tries; only the last one matters.
_COMPLAINT = re.compile(
    r"NET/Plugin ?:.*(?:Failed to find|No plugin found \(libnccl-net|Could not find|cannot open)"
)
_NET = re.compile(r"\[(?:send|receive)\] via NET/([^/]+)/")
# NCCL 2.20 to 2.23 log the algorithm's number, later versions its name, earlier ones nothing.
_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
_NUMBERS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")


class Choice(NamedTuple):
    """The algorithm that NCCL chose for one collective of a size."""

    bytes: int
    algorithm: str  # as in NCCL_ALGO, in small letters


def complaints(log: str) -> list[str]:
    """The lines that say why a net plugin is not used."""
    return [line for line in log.splitlines() if _COMPLAINT.search(line)]


def nets(log: str) -> set[str]:
    """The names of the nets of channels between two ranks."""
    return set(_NET.findall(log))


def choices(log: str) -> list[Choice]:
    """The choices in order. Only rank 0 logs them (NCCL_DEBUG_SUBSYS with TUNING)."""
    return [Choice(int(m[1]), _algorithm(m[2])) for m in _CHOICE.finditer(log)]


def _algorithm(text: str) -> str:
    return _NUMBERS[int(text)] if text.isdigit() else text.lower().replace("_", "")
