"""The view of a run: the ranks that are still in (PROTOCOL.md, section 16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reducer.wire.errors import ProtocolError
from reducer.wire.losses import Losses

# The done position of a rank that is out: above all others, so that nothing waits for the rank.
NO_POSITION: Final = (1 << 64) - 1


class View:
    """The members of a run in one epoch.

    `lost`: (epoch, rank) of every loss, in order; `epoch`: that of the last one, 0 before any.
    `members` ascend, `out` are the other ranks.
    """

    __slots__ = ("_tree", "count", "epoch", "lost", "lowest", "members", "out", "world_size")

    def __init__(self, world_size: int, lost: Losses = ()) -> None:
        """Raises ProtocolError for a rank outside the run, and if no member is left."""
        self.world_size = world_size
        self.lost = lost
        self.epoch = lost[-1][0] if lost else 0
        self.out = frozenset([rank for _, rank in lost])
        self.members: Sequence[int] = range(world_size)
        if lost:
            self.members = [rank for rank in self.members if rank not in self.out]
        self.count = len(self.members)
        if not self.members or self.count + len(lost) != world_size:
            raise ProtocolError(
                f"{len(lost)} lost ranks, the highest {max(self.out)}, of a run of {world_size}: "
                "expected ranks of the run, and a rank that is left"
            )
        self.lowest = self.members[0]
        self._tree: list[int] | None = None

    def first_tree(self) -> list[int]:
        """The positions of a key (`Key`) that no member has reported yet."""
        if not self.out:
            return [0] * (2 * self.world_size)
        if self._tree is None:
            self._tree = self._tree_without_out()
        return list(self._tree)

    def _tree_without_out(self) -> list[int]:
        tree = [0] * (2 * self.world_size)
        for rank in self.out:
            tree[self.world_size + rank] = NO_POSITION
        for at in range(self.world_size - 1, 0, -1):
            tree[at] = min(tree[2 * at], tree[2 * at + 1])
        return tree

    def after(self, lost: Losses) -> View:
        """The view with these losses; raises ProtocolError unless they continue those of this
        view: members never come back.
        """
        if lost == self.lost:
            return self
        if lost[: len(self.lost)] != self.lost or lost[len(self.lost)][0] <= self.epoch:
            raise ProtocolError(
                f"the lost ranks (epoch, rank) {lost!r:.200} do not continue {self.lost!r:.200}"
            )
        return View(self.world_size, lost)
