"""The rounds of a key on this lane, and the results kept until every rank holds them."""

from __future__ import annotations

from bisect import insort

from reducer.core.containers.ascending import Ascending
from reducer.core.containers.tables import Numbered
from reducer.core.rounds.descriptor import Descriptor
from reducer.core.rounds.key import Key
from reducer.core.rounds.plan import Plan
from reducer.core.rounds.round import Chunk, Round, StreamRounds
from reducer.core.surface.buffer import Buffer
from reducer.wire.codes import MAX_CHUNKS
from reducer.wire.header import Header


class KeyProgress(Key):
    """`held` are the complete chunks that are not stable yet, in their order. `ascending`: the
    numbers of the rounds, where an earlier stream may have had some of them.
    """

    __slots__ = ("ascending", "held", "rounds")

    def __init__(self, id_: int, world_size: int) -> None:
        super().__init__(id_, world_size)
        self.rounds: Numbered[Round] = Numbered()
        self.ascending: Ascending | None = None
        self.held: list[Chunk] = []  # as long as credits allow; a deque takes more, empty

    def described(self, stream: StreamRounds, header: Header, plan: Plan, now: float) -> Round:
        """The record of a round, made and described by whoever speaks of it first; raises
        RecordsError."""
        round_ = self.rounds.get(header.round)
        if round_ is None:
            round_ = self.begin(stream, header.round, now)
        if round_.descriptor is None and not round_.void:
            round_.describe(Descriptor(header), plan, stream.place.owned(self.id, plan.chunks))
        return round_

    def begin(self, stream: StreamRounds, number: int, now: float) -> Round:
        """A round of the key begins here; raises RecordsError."""
        round_ = Round(stream, self, number, self._world_size, now)
        self.rounds[number] = round_
        if stream.since:
            if self.ascending is None:
                self.ascending = Ascending()
            self.ascending.add(number, self.rounds)
        return round_

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
        if not len(self.rounds):
            self.held.clear()  # chunks know their round, and rounds their key
        return took

    def forget(self, round_: Round) -> None:
        if self.rounds.pop(round_.number) is not None:
            if self.ascending is not None:
                self.ascending.lost(self.rounds)
            round_.give_back()


def _position(chunk: Chunk) -> int:
    return chunk.position
