"""One key of a run: its name, and how far each rank holds its results (PROTOCOL.md, section 8)."""

from __future__ import annotations

from reducer.core.containers.listing import Listed


class Key(Listed):
    """`stable` is the minimum of the ranks' done positions.

    `_tree` has these in its second half, and in each place n before the lesser of places 2n and
    2n + 1: so the minimum, in place 1, costs no more than the logarithm of the ranks, whatever the
    ranks report. `unreported` is the cost of what became stable and no frame has told the ranks
    yet. `idles`: the key is in the queue of its table for keys that may be forgotten.
    """

    __slots__ = (
        "_tree", "_world_size", "id", "idles", "name", "stable", "touched_at", "unreported",
    )  # fmt: skip

    def __init__(self, id_: int, world_size: int) -> None:
        super().__init__()
        self.id = id_
        self.name = ""
        self._tree = [0] * (2 * world_size)
        self._world_size = world_size
        self.stable = 0
        self.touched_at = 0.0
        self.idles = False
        self.unreported = 0

    @property
    def label(self) -> str:
        return repr(self.name) if self.name else f"{self.id:#018x}"

    def is_news(self, rank: int, position: int) -> bool:
        """Whether the rank has not reported as much before."""
        return position > self._tree[self._world_size + rank]

    def report(self, rank: int, position: int) -> bool:
        """Take a rank's done position; True when `stable` has risen."""
        tree = self._tree
        at = self._world_size + rank
        if position <= tree[at]:
            return False
        tree[at] = position
        while at > 1:
            beside = tree[at ^ 1]
            at >>= 1
            least = beside if beside < position else position
            if tree[at] == least:
                return False
            tree[at] = position = least
        self.stable = position
        return True

    def slowest(self) -> int:
        """The lowest of the ranks whose done position is `stable`."""
        return self._tree.index(self.stable, self._world_size) - self._world_size
