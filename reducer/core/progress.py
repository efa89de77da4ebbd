"""What every rank holds of a key on this lane: done, stable, and the results kept until then."""

from __future__ import annotations

from reducer.core.buffer import Buffer
from reducer.core.round import Chunk, Round, Step


class KeyProgress:
    """One key of one job (PROTOCOL.md, section 8).

    `stable` is the minimum of `done` over the ranks; `_at_least` counts the ranks that stand
    there, so that the minimum is sought only when the last of them has moved on. `unreported` is
    the cost of what became stable and no frame has told the ranks yet. `idles`: the key is in the
    queue of its table for keys that may be forgotten.
    """

    __slots__ = (
        "_at_least", "done", "held", "id", "idles", "name", "rounds", "stable", "touched_at",
        "unreported",
    )  # fmt: skip

    def __init__(self, id_: int, world_size: int) -> None:
        self.id = id_
        self.name = ""
        self.done = [0] * world_size
        self.stable = 0
        self._at_least = world_size
        self.rounds: dict[int, Round] = {}
        self.held: list[Chunk] = []  # as long as credits allow; a deque takes more, empty
        self.touched_at = 0.0
        self.idles = False
        self.unreported = 0

    @property
    def label(self) -> str:
        return repr(self.name) if self.name else f"{self.id:#018x}"

    def report(self, rank: int, position: int) -> bool:
        """Take a rank's done position; True when `stable` has risen."""
        before = self.done[rank]
        if position <= before:
            return False
        self.done[rank] = position
        if before != self.stable:
            return False
        self._at_least -= 1
        if self._at_least:
            return False
        self.stable = min(self.done)
        self._at_least = self.done.count(self.stable)
        return True

    def keep(self, chunk: Chunk) -> None:
        """Hold a complete chunk until every rank has its result."""
        self.held.append(chunk)

    def release(self) -> tuple[list[Buffer], int]:
        """Forget the chunks below `stable`: their buffers and their cost."""
        freed: list[Buffer] = []
        cost = 0
        while self.held and self.held[0].position < self.stable:
            chunk = self.held.pop(0)
            chunk.step(Step.ALL_DONE)
            if chunk.result is not None:
                freed.append(chunk.result)
                chunk.result = None
            round_ = chunk.round
            if round_.plan is not None:
                cost += round_.plan.cost(chunk.index)
            round_.forget_chunk(chunk)
            self.forget_if_over(round_)
        return freed, cost

    def forget_if_over(self, round_: Round) -> None:
        """Drop a round of which nothing is left to do or to hold."""
        if round_.chunks:
            return
        over = len(round_.abandoned) == len(self.done) if round_.void else round_.left == 0
        if over:
            self.forget(round_)

    def forget(self, round_: Round) -> None:
        if self.rounds.pop(round_.number, None) is not None:
            round_.give_back()
