"""Process sets: ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Iterable

from reducer_client.horovod import context

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """Some of the global ranks; usable between ``add_process_set`` (or ``init``) and its removal.

    Attributes:
        process_set_id: a number equal on all ranks; None while it is not usable.
        ranks: global ranks, ascending.
    """

    process_set_id: int | None = None

    def __init__(self, ranks: Iterable[int]) -> None:
        found = sorted(ranks)
        if any(not isinstance(rank, int) for rank in found) or len(set(found)) < len(found):
            raise ValueError(f"ProcessSet({found}): expected a list of different ranks")
        self.ranks = found

    def size(self) -> int | None:
        """The number of its ranks; None while it is not usable."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's number in the set; None while it is not usable or without this rank.

        Calls that take a root, such as ``broadcast``, take the global rank.
        """
        if self.process_set_id is None or not self.included():
            return None
        return self.ranks.index(context.known().rank)

    def included(self) -> bool:
        """Whether this process is in the set; needs ``init``."""
        return context.known().rank in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


# All ranks; its ranks are there between init and shutdown.
global_process_set = ProcessSet([])
# The others that are usable, as they were added.
_usable: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set usable. Every rank must call it, in the same order, with the same ranks.

    Returns when its ranks have met. Raises ValueError where it exists, or has ranks that do not,
    and HorovodInternalError where the ranks do not agree, or one of them has joined.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    current = context.current()
    with current.end_on_interrupt:
        made.process_set_id = current.sets.add(made.ranks)
    _usable.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Give the set up. Every rank must call it, in the same order.

    Returns:
        Whether it was there; the global set stays.
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
    """But for the global one, in the order in which they were added."""
    return list(_usable)


def forget_process_sets() -> None:
    """After ``shutdown`` their numbers may be those of other ranks' sets."""
    for process_set in _usable:
        process_set.process_set_id = None
    _usable.clear()
