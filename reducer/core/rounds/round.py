"""The life of a chunk, and of its round, in a stream of one lane.

Two laws: everything that changes the state of a chunk is in this file; this file never sees a
socket, a clock or an array.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from reducer.core.containers.ascending import Ascending
from reducer.core.containers.listing import Listed, Listing
from reducer.core.containers.tables import Numbered, OrderedSet
from reducer.core.limits.charges import (
    CHUNK,
    LIST_PLACE,
    MARK,
    OWN_DESCRIPTOR,
    ROUND,
    Records,
    text_bytes,
)
from reducer.core.limits.held import HeldBytes
from reducer.core.rounds.chunk_owners import Place
from reducer.core.rounds.chunk_plan import ChunkPlan
from reducer.core.rounds.descriptor import WIDE, Descriptor
from reducer.core.rounds.key import Key, Untold
from reducer.core.rounds.view import View
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Wait
from reducer.wire.codes import Flag
from reducer.wire.errors import InternalError
from reducer.wire.header import NO_RANK, Header
from reducer.wire.keys import position
from reducer.wire.messages import Refused


class Phase(IntEnum):
    COLLECTING = 0  # ranks are missing, or parts are left for the next turns
    FOLDING = 1  # all ranks have contributed; the last kernel runs
    COMPLETE = 2  # the result is sent and cached
    STABLE = 3  # every rank holds the result; nothing is left here
    FAILED = 4  # the round was refused or abandoned


class Step(IntEnum):
    CONTRIBUTED = 0
    LAST_KERNEL = 1
    REDUCED = 2
    ALL_DONE = 3
    VOIDED = 4


TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.COLLECTING, Step.CONTRIBUTED): Phase.COLLECTING,
    (Phase.COLLECTING, Step.LAST_KERNEL): Phase.FOLDING,
    (Phase.FOLDING, Step.REDUCED): Phase.COMPLETE,
    (Phase.COMPLETE, Step.ALL_DONE): Phase.STABLE,
    (Phase.COLLECTING, Step.VOIDED): Phase.FAILED,
    # The result is on its way to the ranks: the chunk stays until all ranks have it.
    (Phase.COMPLETE, Step.VOIDED): Phase.COMPLETE,
}

# TRANSITIONS as a list, for the data path: hashing and looking up enum members are calls.
_STEPS: Final = len(Step)
_AFTER: Final = [TRANSITIONS.get((phase, step)) for phase in Phase for step in Step]
_CONTRIBUTED: Final = Step.CONTRIBUTED
_LOW32: Final = 0xFFFF_FFFF
_OF_RESULTS: Final = int(Flag.OVERFLOW | Flag.NAN | Flag.NONFINITE)


class Chunk:
    """One chunk on its owner: the ranks that have contributed, their parts, and what is folded.

    `crcs[rank]` is the CRC of the rank's contribution, or None before it: bitmap and duplicate
    check in one. `parts` holds the contributions that are not in `acc`. A part leaves `parts` only
    after a kernel has read it: the parts of the ranks in `folding` are still there. If the order
    matters, the ranks below `folded` are in `acc`. `half_at`: when half of the ranks had
    contributed. `cost`: what each contribution takes of its rank's credit. `culprit`: the lowest
    rank whose contribution is known not to be finite, else NO_RANK. `part_bytes`: the memory of
    each part; the buffers of one chunk have one size. `origin`: the epoch whose members are in the
    result.

    `holders`: the ranks that have sent the result instead of a contribution; `result_crc` is then
    known, and the part of the first holder is the result. The chunk still waits for all members:
    a holder is answered when all have sent, so its credit bounds what it sends ahead of them.
    """

    __slots__ = (
        "acc", "cost", "crcs", "culprit", "flags", "folded", "folding", "half_at", "holders",
        "index", "missing", "origin", "part_bytes", "parts", "phase", "result", "result_crc",
        "round",
    )  # fmt: skip

    def __init__(self, round_: Round, index: int, cost: int) -> None:
        view = round_.stream.view
        self.round = round_
        self.index = index
        self.cost = cost
        self.phase = Phase.COLLECTING
        self.crcs: list[int | None] = [None] * view.world_size
        self.missing = view.count
        self.origin = view.epoch
        self.holders: list[int] | None = None
        self.half_at = 0.0
        self.parts: dict[int, Buffer] = {}
        self.part_bytes = 0
        self.folded = 0
        self.folding: list[int] = []
        self.acc: Buffer | None = None
        self.flags = 0
        self.culprit = NO_RANK
        self.result: Buffer | None = None
        self.result_crc = 0

    @property
    def position(self) -> int:
        return position(self.round.number, self.index)

    def step(self, step: Step) -> None:
        """Move along TRANSITIONS; raises InternalError for any other step."""
        after = _AFTER[self.phase * _STEPS + step]
        if after is None:
            raise InternalError(
                f"chunk {self.index} of key {self.round.key.id:#x} round {self.round.number}: "
                f"{step.name} in phase {self.phase.name}"
            )
        self.phase = after

    def contribute(self, rank: int, crc: int, buffer: Buffer | None, now: float) -> None:
        round_ = self.round
        round_.contributed[rank] += 1
        self.crcs[rank] = crc
        self.missing -= 1
        if self.missing == round_.stream.half:
            self.half_at = now
        if not self.missing:
            round_.last = rank
        if buffer is not None:
            if not self.parts:
                self.part_bytes = len(buffer.view)
            self.parts[rank] = buffer
            round_.stream.held.park(self.part_bytes)
        self.step(_CONTRIBUTED)

    def ready(self, in_order: bool) -> list[int]:
        """The ranks that may be folded now: the next ones in order, or all if the order is free."""
        if not in_order:
            return sorted(self.parts)
        rank, out = self.folded, self.round.stream.view.out
        while rank in self.parts or rank in out:
            rank += 1
        return [rank for rank in range(self.folded, rank) if rank not in out]

    def begin_fold(self, ranks: list[int]) -> None:
        """A kernel begins to read the parts of these ranks; `folded_into` follows."""
        self.folding = ranks

    def begin_last(self) -> None:
        """All ranks have contributed and the last kernel begins; `complete` follows."""
        self.step(Step.LAST_KERNEL)
        self.round.left -= 1

    def last_part(self) -> Buffer:
        """The part of the highest rank."""
        last = 0
        for rank in self.parts:
            if rank > last:
                last = rank
        return self.parts[last]

    def folded_into(self, taken: Buffer | None) -> list[Buffer]:
        """The parts of `folding` are in the accumulator. Returns the parts that are free now.

        A new accumulator is `taken`, or else the buffer of the first part.
        """
        ranks, self.folding = self.folding, []
        spent = [self.parts.pop(rank) for rank in ranks]
        held = self.round.stream.held
        held.unpark(len(spent), self.part_bytes)
        acc = taken
        if acc is None and self.acc is None:
            acc = spent.pop(0)
        if acc is not None:
            self.acc = acc
            held.keep(acc)
        self.folded = ranks[-1] + 1
        return spent

    def adopt(self, rank: int, header: Header, buffer: Buffer | None, now: float) -> list[Buffer]:
        """The first holder has sent the result. Returns the parts, which are not needed any more.

        The contributions of the other ranks count as sent.
        """
        freed: list[Buffer] = []
        self.drop(freed)
        self.folded, self.holders = 0, [rank]
        self.origin = header.stable & _LOW32
        self.flags = header.flags & _OF_RESULTS
        self.culprit = header.stable >> 32
        self.result_crc = header.payload_crc
        self.contribute(rank, header.payload_crc, buffer, now)
        return freed

    @property
    def outcome(self) -> Buffer | None:
        """The bytes of the result once they are known; None before that and without bytes."""
        if self.holders is not None and self.parts:
            return self.parts[self.holders[0]]
        return self.result

    def charged(self) -> list[int]:
        """The ranks whose contributions are not answered, while the chunk is not complete."""
        return self.present() if self.holders is None else self.holders

    def note(self, flags: int, culprit: int) -> None:
        """A kernel has found `flags`; `culprit` is the lowest of its ranks whose part is not
        finite.
        """
        self.flags |= flags
        if culprit < self.culprit:
            self.culprit = culprit

    def complete(self, result: Buffer | None, crc: int) -> list[Buffer]:
        """The chunk is complete; `result` is the buffer of one of its parts or a new one, if it has
        bytes.

        Returns the other parts and the accumulator. The chunk no longer refers to them, so a later
        error cannot free them a second time.
        """
        self.step(Step.REDUCED)
        held = self.round.stream.held
        held.unpark(len(self.parts), self.part_bytes)
        spent = [part for part in self.parts.values() if part is not result]
        self.parts.clear()
        if self.acc is not None:
            held.release(self.acc)
            spent.append(self.acc)
            self.acc = None
        if result is not None:
            held.keep(result)
        held.unstable += self.cost
        self.result = result
        self.result_crc = crc
        return spent

    def release(self) -> Buffer | None:
        """Every rank has the result. Returns its buffer, which the chunk gives up."""
        self.step(Step.ALL_DONE)
        held = self.round.stream.held
        held.unstable -= self.cost
        result, self.result = self.result, None
        if result is not None:
            held.release(result)
        return result

    def drop_passed(self, freed: list[Buffer]) -> None:
        """Every rank holds the result from an earlier stream: drop the contributions that came
        again.
        """
        self.step(Step.VOIDED)
        self.drop(freed)
        self.round.forget_chunk(self)
        self.round.left -= 1

    def drop(self, freed: list[Buffer]) -> None:
        """Move every buffer of the chunk to `freed`; if this raises, `freed` has the parts."""
        held = self.round.stream.held
        if self.phase is Phase.COMPLETE:
            held.unstable -= self.cost
        freed += self.parts.values()
        held.unpark(len(self.parts), self.part_bytes)
        self.parts.clear()
        if self.acc is not None:
            freed.append(self.acc)
            held.release(self.acc)
            self.acc = None
        if self.result is not None:
            freed.append(self.result)
            held.release(self.result)
            self.result = None

    def present(self) -> list[int]:
        return [rank for rank, crc in enumerate(self.crcs) if crc is not None]

    def absent(self) -> list[int]:
        return [rank for rank in self.round.stream.view.members if self.crcs[rank] is None]


class Debt:
    """The cost of what a rank has sent of a void round since its reconnect number `times`."""

    __slots__ = ("cost", "times")

    def __init__(self, cost: int, times: int) -> None:
        self.cost = cost
        self.times = times


class Round(Listed):
    """One round of one key in a stream.

    `owned`: how many chunks of the round this lane owns. `left`: how many of these are not
    complete. `described`: ranks that have sent a DESCRIBE. `collected`: every rank's descriptor,
    collected once two of them differ. `last`: the rank whose contribution completed a chunk last.
    `wait`: the longest wait of the round for a rank, if rounds are traced. `charged`: the bytes of
    the round's records. `ascending`: the indexes of the chunks, only in a stream that a route has
    moved here. `opening`: the place of the round in the order of first contributions, from 1; 0
    before that.

    A void round only waits to be forgotten. `owed`: the cost that each rank's ABANDON will settle
    (Debts). `refused`: the verdict, once it is known. `told`: the ranks that were sent the verdict.
    `abandoned`: the ranks that have sent an ABANDON.
    """

    __slots__ = (
        "abandoned", "ascending", "charged", "chunks", "collected", "contributed", "described",
        "descriptor", "key", "last", "left", "number", "opened_at", "opening", "owed", "owned",
        "plan", "refused", "stream", "told", "touched_at", "void", "wait",
    )  # fmt: skip

    def __init__(self, stream: StreamRounds, key: Key, number: int, now: float) -> None:
        """Raises RecordsError."""
        super().__init__()
        world_size = stream.view.world_size
        self.charged = 0
        self.stream = stream
        self.charge(ROUND + LIST_PLACE * world_size)
        stream.records.rounds += 1
        self.key = key
        self.number = number
        self.descriptor: Descriptor | None = None
        self.plan: ChunkPlan | None = None
        self.chunks: Numbered[Chunk] = Numbered()
        self.ascending = Ascending() if stream.since else None
        self.contributed = [0] * world_size
        self.owned = 0
        self.left = 0
        self.last = 0
        self.opened_at = now
        self.touched_at = now
        self.wait: Wait | None = None
        self.opening = 0
        self.void = False
        self.refused: Refused | None = None
        # Sets of ranks, as dicts: an empty dict takes less memory than an empty set.
        self.told: dict[int, None] = {}
        self.described: dict[int, None] = {}
        self.abandoned: dict[int, None] = {}
        self.collected: dict[int, Descriptor] | None = None
        self.owed: dict[int, Debt] = {}

    def charge(self, size: int) -> None:
        """Take room for one more record of the round; raises RecordsError."""
        records = self.stream.records
        records.take(size)
        records.of_rounds += size
        self.charged += size

    def give_back(self) -> None:
        """The round is forgotten, with its chunks: give back the room of its records."""
        records = self.stream.records
        self.chunks.clear()
        self.stream.rounds.discard(self)
        if self.refused is not None:
            self.stream.refused.remove(self)
        records.give(self.charged)
        records.of_rounds -= self.charged
        records.rounds -= 1

    def mark(self, ranks: dict[int, None], rank: int) -> None:
        """Note the rank in one of the round's sets; raises RecordsError."""
        if rank not in ranks:
            self.charge(MARK)
            ranks[rank] = None

    def refuse(self, refused: Refused) -> None:
        """Keep the verdict for ranks that may miss it; raises RecordsError."""
        self.charge(text_bytes(refused.message))
        self.stream.refused.add(self)
        self.refused = refused

    def describe(self, descriptor: Descriptor, plan: ChunkPlan, owned: int) -> None:
        self.descriptor = descriptor
        self.plan = plan
        self.owned = self.left = owned

    def agrees(self, header: Header, plan: ChunkPlan) -> bool:
        """Whether a contribution describes the round as the first one did."""
        described = self.descriptor
        assert described is not None
        # One plan object stands for collective, op, dtype and count.
        if plan is self.plan and header.root == described.root:
            return bool(header.flags & WIDE) == described.wide
        return Descriptor(header) == described

    def chunk(self, index: int, cost: int) -> Chunk:
        """Return the record of a chunk, which is made if the chunk is new; raises RecordsError."""
        chunk = self.chunks.get(index)
        if chunk is None:
            world_size = len(self.contributed)
            self.charge(CHUNK + LIST_PLACE * world_size)
            self.chunks[index] = chunk = Chunk(self, index, cost)
            self.stream.rounds.add(self)
            if self.ascending is not None:
                self.ascending.add(index, self.chunks)
        return chunk

    def forget_chunk(self, chunk: Chunk) -> None:
        if self.chunks.pop(chunk.index) is not None:
            if self.ascending is not None:
                self.ascending.removed(self.chunks)
            size = CHUNK + LIST_PLACE * len(self.contributed)
            records = self.stream.records
            records.give(size)
            records.of_rounds -= size
            self.charged -= size

    def make_void(self) -> list[Buffer]:
        """Void the round. Returns the buffers of its incomplete chunks; complete chunks keep
        theirs.
        """
        self.void = True
        freed: list[Buffer] = []
        for chunk in self._collecting():
            chunk.step(Step.VOIDED)
            chunk.drop(freed)
            self.forget_chunk(chunk)
        return freed

    def speakers(self) -> set[int]:
        """The ranks whose descriptor is known here."""
        if self.collected is not None:
            return set(self.collected)
        return {r for r, n in enumerate(self.contributed) if n} | set(self.described)

    def begin_verdict(self) -> None:
        """Two descriptors differ: from now on every rank's descriptor is collected."""
        assert self.descriptor is not None
        speakers = self.speakers()
        self.charge(MARK * len(speakers))
        self.stream.rounds.add(self)
        self.collected = dict.fromkeys(speakers, self.descriptor)

    def collect(self, rank: int, descriptor: Descriptor) -> bool:
        """Take a rank's descriptor for the verdict. Returns True if it was the last one."""
        if self.collected is None or rank in self.collected:
            return False
        self.charge(OWN_DESCRIPTOR)
        self.collected[rank] = descriptor
        return len(self.collected) == self.stream.view.count

    def note_wait(self, wait: Wait) -> None:
        """Keep the wait if it is the longest so far."""
        known = self.wait
        if known is None or wait.until - wait.since > known.until - known.since:
            self.wait = wait

    def unanswered(self) -> dict[int, int]:
        """The unanswered cost of each rank in this round; one walk for all ranks."""
        owed: dict[int, int] = {}
        for chunk in self._collecting():
            cost = chunk.cost
            for rank in chunk.charged():
                owed[rank] = owed.get(rank, 0) + cost
        return owed

    def _collecting(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks.values() if chunk.phase == Phase.COLLECTING]

    def has_passed(self, index: int) -> bool:
        """Whether there may be an incomplete chunk before `index` for `passed` to return."""
        return self.ascending is not None and self.ascending.has_below(index)

    def passed(self, index: int, most: int) -> list[Chunk]:
        """Incomplete chunks before `index`, whose results every rank holds: each is returned once.

        Looks at `most` chunks at most.
        """
        below = [] if self.ascending is None else self.ascending.take_below(index, most)
        found = [chunk for i in below if (chunk := self.chunks.get(i)) is not None]
        return [chunk for chunk in found if chunk.phase == Phase.COLLECTING]

    def wants(self, rank: int) -> bool:
        """Whether chunks of the rank, or its descriptor, are still to come."""
        if self.collected is not None:
            return rank not in self.collected
        return self.contributed[rank] < self.owned

    def waiting_for(self) -> list[int]:
        """The ranks that are missing from the verdict, or from the first incomplete chunk."""
        if self.collected is None:
            for chunk in self.chunks.values():
                if chunk.phase == Phase.COLLECTING:
                    return chunk.absent()
        return [rank for rank in self.stream.view.members if self.wants(rank)]


class StreamRounds:
    """The rounds of a stream.

    `place`: the chunks of home slot `home` that are in the stream; frames about it carry `since`.
    `records` and `held` count the records and the buffers of all streams of the run. `rounds`: the
    rounds to which a rank has contributed, or that wait for a verdict. `refused`: the rounds whose
    verdict is known. Only the keys know the other rounds. `half` of the members: a chunk waits for
    the others as soon as no more than these are missing.
    """

    __slots__ = (
        "half", "held", "home", "is_over", "place", "records", "refused", "rounds", "since",
        "untold", "view",
    )  # fmt: skip

    def __init__(
        self, home: int, since: int, place: Place, records: Records, held: HeldBytes, view: View
    ) -> None:
        self.view = view
        self.half = view.count // 2
        self.home = home
        self.since = since
        self.place = place
        self.records = records
        self.held = held
        self.untold = Untold()
        self.rounds: OrderedSet[Round] = OrderedSet()
        self.refused: Listing[Round] = Listing()
        self.is_over = False
