"""What every rank holds of a key on this lane: done, stable, and the results kept until then."""

from __future__ import annotations

from bisect import insort

from reducer.core.containers.ascending import Ascending
from reducer.core.containers.listing import Listed
from reducer.core.containers.tables import Numbered
from reducer.core.rounds.round import Chunk, Round
from reducer.core.surface.buffer import Buffer
from reducer.wire.codes import MAX_CHUNKS


class KeyProgress(Listed):
    """One key of one job (PROTOCOL.md, section 8).

    `stable` is the minimum of the ranks' done positions. `_tree` has these in its second half, and
    in each place n before the lesser of places 2n and 2n + 1: so the minimum, in place 1, costs no
    more than the logarithm of the ranks, whatever the ranks report. `unreported` is the cost of
    what became stable and no frame has told the ranks yet. `idles`: the key is in the queue of its
    table for keys that may be forgotten.
    """

    __slots__ = (
        "_tree", "_world_size", "ascending", "held", "id", "idles", "name", "rounds", "stable",
        "touched_at", "unreported",
    )  # fmt: skip

    def __init__(self, id_: int, world_size: int) -> None:
        super().__init__()
        self.id = id_
        self.name = ""
        self._tree = [0] * (2 * world_size)
        self._world_size = world_size
        self.stable = 0
        self.rounds: Numbered[Round] = Numbered()
        self.ascending: Ascending | None = None
        self.held: list[Chunk] = []  # as long as credits allow; a deque takes more, empty
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

    def keep(self, chunk: Chunk) -> None:
        """Hold a complete chunk until every rank has its result."""
        if self.held and self.held[-1].position > chunk.position:
            insort(self.held, chunk, key=_position)
        else:
            self.held.append(chunk)

    @property
    def has_passed(self) -> bool:
        """Whether there may be rounds or chunks that are not complete, but every rank has."""
        if self.ascending is None:
            return False
        number, index = divmod(self.stable, MAX_CHUNKS)
        under_way = self.rounds.get(number)
        return self.ascending.has_below(number) or (
            under_way is not None and under_way.has_passed(index)
        )

    @property
    def holds_stable(self) -> bool:
        """Whether there are chunks to `release`."""
        return bool(self.held) and self.held[0].position < self.stable

    def release(self) -> tuple[list[Buffer], int]:
        """Forget the chunks below `stable`: their buffers and their cost."""
        freed: list[Buffer] = []
        cost = 0
        passed = 0
        for chunk in self.held:
            if chunk.position >= self.stable:
                break
            passed += 1
            result = chunk.release()
            if result is not None:
                freed.append(result)
            round_ = chunk.round
            if round_.plan is not None:
                cost += round_.plan.cost(chunk.index)
            round_.forget_chunk(chunk)
            self.forget_if_over(round_)
        del self.held[:passed]
        return freed, cost

    def add(self, round_: Round) -> None:
        """A round of the key begins here."""
        self.rounds[round_.number] = round_
        if round_.stream.since:
            if self.ascending is None:
                self.ascending = Ascending()
            self.ascending.add(round_.number, self.rounds)

    def first_passed(self) -> Round | None:
        """The first of the rounds that every rank has behind it."""
        if self.ascending is None:
            return None
        number = self.ascending.first_below(self.stable // MAX_CHUNKS, self.rounds)
        return None if number is None else self.rounds[number]

    def forget_if_over(self, round_: Round) -> None:
        """Drop a round of which nothing is left to do or to hold."""
        if round_.chunks:
            return
        over = len(round_.abandoned) == self._world_size if round_.void else round_.left == 0
        if over:
            self.forget(round_)

    def forget_rounds(self, most: int) -> int:
        """Forget rounds until their records took `most` bytes; the bytes."""
        took = 0
        while took < most and len(self.rounds):
            round_ = self.rounds.pop_last()
            took += round_.charged
            round_.give_back()
        return took

    def forget(self, round_: Round) -> None:
        if self.rounds.pop(round_.number) is not None:
            if self.ascending is not None:
                self.ascending.lost(self.rounds)
            round_.give_back()


def _position(chunk: Chunk) -> int:
    return chunk.position
