"""Names of keys, runs and groups, and positions in a key (PROTOCOL.md, sections 2, 4 and 8)."""

from __future__ import annotations

from typing import Final

from reducer.wire.codes import MAX_CHUNKS

# Separates the id of a run from the name of a group of its workers.
GROUP_MARK: Final = "#"

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = (1 << 64) - 1


def key_id(name: str) -> int:
    """64-bit FNV-1a of the UTF-8 name."""
    value = _FNV_OFFSET
    for byte in name.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def position(round_: int, chunk: int) -> int:
    """The place of a chunk in the sequence of all chunks of its key."""
    return round_ * MAX_CHUNKS + chunk


def split_run_id(run_id: str) -> tuple[str, str]:
    """The id of the run and the name of the group; "" if `run_id` names no group.

    >>> split_run_id("night-7"), split_run_id("night-7#rows#0")
    (('night-7', ''), ('night-7', 'rows#0'))
    """
    run, _, group = run_id.partition(GROUP_MARK)
    return run, group


def run_title(job: str, run_id: str) -> str:
    """The job's name and, for a group, the group's name. Ranks start at 0 in each job and group.

    The mark is percent-encoded in the job's name, so no job has the title of another job's group.

    >>> run_title("night", "7#rows"), run_title("night#rows", "7"), run_title("50%", "7")
    ('night#rows', 'night%23rows', '50%25')
    """
    job = job.replace("%", "%25").replace(GROUP_MARK, "%23")
    group = split_run_id(run_id)[1]
    return f"{job}{GROUP_MARK}{group}" if group else job
