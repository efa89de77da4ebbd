"""Process sets: ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Iterable

from reducer_client.horovod import context

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """Some of the global ranks. Usable from ``add_process_set`` or ``init`` until its removal.

    Attributes:
        process_set_id: a number, equal on all ranks; None while the set is not usable.
        ranks: global ranks, ascending.
    """

    process_set_id: int | None = None

    def __init__(self, ranks: Iterable[int]) -> None:
        found = sorted(ranks)
        if any(not isinstance(rank, int) for rank in found) or len(set(found)) < len(found):
            raise ValueError(f"ProcessSet({found}): expected integers, each rank once")
        self.ranks = found

    def size(self) -> int | None:
        """The number of ranks; None while the set is not usable."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's rank in the set; None if it is not in the set or the set is not usable.

        Calls with a root, such as ``broadcast``, take the root's global rank.
        """
        if self.process_set_id is None or not self.included():
            return None
        return self.ranks.index(context.known().rank)

    def included(self) -> bool:
        """Whether this process is in the set. Raises HorovodInternalError before ``init``."""
        return context.known().rank in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


# The set of all ranks. `init` sets its ranks, `shutdown` clears them.
global_process_set = ProcessSet([])
# All other usable sets, in the order of their addition.
_usable: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a process set usable. Every rank must call this, in the same order, with the same ranks.

    Returns when the ranks of the set have joined it.

    Raises:
        ValueError: the set exists already, or a rank does not exist.
        HorovodInternalError: the ranks give different sets, or a rank has joined.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    current = context.current()
    with current.end_on_interrupt:
        made.process_set_id = current.sets.add(made.ranks)
    _usable.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set. Every rank must call this, in the same order.

    Returns:
        Whether the set was usable. The global set cannot be removed.
    """
    number = process_set.process_set_id
    if number is None or process_set is global_process_set:
        return False
    current = context.current()
    with current.end_on_interrupt:
        was_there = current.sets.remove(number)
    process_set.process_set_id = None
    if process_set in _usable:
        _usable.remove(process_set)
    return was_there


def usable_process_sets() -> list[ProcessSet]:
    """All usable sets except the global one, in the order of their addition."""
    return list(_usable)


def forget_process_sets() -> None:
    """Make all sets unusable, because a later ``init`` numbers its sets from 1 again."""
    for process_set in _usable:
        process_set.process_set_id = None
    _usable.clear()
