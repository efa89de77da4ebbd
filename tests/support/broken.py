"""The core without one of its rules, in storms of faults: ``python -m tests.support.broken RULE``.

Exits with 1 when a storm shows that the rule is missing, and prints how; with 0 when none does.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.counts import draws
from tests.support.interpreted import run_interpreted

SEEDS = draws(3, 100)  # the first storm shows each missing rule
SEEDS_OF_VIEWS = draws(10, 400)
FIRST = {"one_view": 1_915}  # two views at once are rare; found in storms of float32 alone
ROUNDS = 10


def rank_order() -> None:
    from reducer.core.runs import sums

    sums._in_order = lambda op, dtype: False


def dedupe() -> None:
    from reducer.core.rounds.round import Chunk

    before = Chunk.contribute

    def contribute(self: Chunk, rank: int, crc: int, buffer: Any, now: float) -> None:
        before(self, rank, crc, buffer, now)
        self.crcs[rank] = None

    Chunk.contribute = contribute  # type: ignore[method-assign]


def immutability() -> None:
    """A retransmission sends the caller's buffer in its present state, instead of a copy."""
    from reducer.wire.codes import MessageKind
    from reducer.wire.decoder import Frame
    from tests.support.simlane import SimSession

    before = SimSession._handle
    sent: dict[int, set[tuple[int, int, int, int]]] = {}

    def handle(self: SimSession, frame: Any) -> None:
        header = frame.header
        if header.kind == MessageKind.CONTRIBUTION and header.length:
            seen = sent.setdefault(id(self.lane.bodies), set())
            id_ = (header.key, header.round, header.chunk, header.rank)
            if id_ in seen:
                assert self._arriving is not None
                view = self._arriving[1].view
                view[0] ^= 1
                crc = self.lane.kernels.crc32c(view[: header.length])
                frame = Frame(header.replace(payload_crc=crc), frame.payload)
            seen.add(id_)
        before(self, frame)

    SimSession._handle = handle  # type: ignore[method-assign]


def freeing() -> None:
    """A result counts as stable as soon as one rank has it."""
    from reducer.core.rounds.key_table import KeyRounds

    before = KeyRounds.take_done

    def take_done(self: KeyRounds, rank: int, position: int) -> bool:
        risen = False
        for other in range(self._world_size):
            risen |= before(self, other, position)
        return risen

    KeyRounds.take_done = take_done  # type: ignore[method-assign]


def redelivery() -> None:
    from reducer.core.runs.contributions import Contributions

    def duplicate(
        self: Contributions, key: Any, chunk: Any, rank: int, header: Any, buffer: Any, out: Any
    ) -> None:
        self._drop_duplicate(buffer, out)

    Contributions._duplicate = duplicate  # type: ignore[method-assign]


def telling_again() -> None:
    from reducer.core.runs.run import Run

    Run.rejoined = lambda self, rank: []  # type: ignore[method-assign]


def moving() -> None:
    from reducer.core.runs.run import Run

    Run.move = lambda self, route, view: []  # type: ignore[method-assign]


def incarnation() -> None:
    """A lane that has lost the state of the run appears to have it."""
    from reducer.core.members.roster import Members

    before = Members.__init__

    def init(
        self: Members, run: Any, incarnations: Any, number: int, digest_every: int, now: float
    ) -> None:
        before(self, run, incarnations, 1, digest_every, now)

    Members.__init__ = init  # type: ignore[method-assign]
    from tests.support import simfaults

    simfaults.NEW_INCARNATIONS = False


def move_of_all() -> None:
    """A lane keeps what the survivors had contributed before the view."""
    from reducer.core.rounds.stream import Streams

    before = Streams.move

    def move(self: Streams, route: Any, view: Any) -> Any:
        kept = dict(self._by_home)
        moved = before(self, route, view)
        for home, stream in kept.items():
            self._by_home[home] = stream
            stream.view, stream.since = view, route.since[home]
        return [stream for stream in moved if stream not in kept.values()]

    Streams.move = move  # type: ignore[method-assign]


def xor() -> None:
    """A lane counts the result that a rank holds as the contribution of the rank."""
    from tests.support.simlane import Flag, SimSession

    before = SimSession._handle

    def handle(self: SimSession, frame: Any) -> None:
        if frame.header.flags & Flag.HELD:
            frame = type(frame)(frame.header.replace(flags=0, stable=0), frame.payload)
        before(self, frame)

    SimSession._handle = handle  # type: ignore[method-assign]


def one_view() -> None:
    """The registry takes every view that it is given: two views get one epoch."""
    from tests.support.simelastic import SimRegistry

    def cas(self: SimRegistry, epoch: int, view: bytes) -> bool:
        self.epoch, self.view = epoch + 1, view
        return True

    SimRegistry.cas = cas  # type: ignore[method-assign]


def stable_of_the_view() -> None:
    """The position of a rank that is out counts for `stable`."""
    from reducer.core.rounds.view import View

    View.first_tree = lambda self: [0] * (2 * self.world_size)  # type: ignore[method-assign]


def origin() -> None:
    """A result that a rank has sent names the present epoch instead of its own."""
    from reducer.core.rounds.round import Chunk

    before = Chunk.adopt

    def adopt(self: Chunk, rank: int, header: Any, buffer: Any, now: float) -> Any:
        freed = before(self, rank, header, buffer, now)
        self.origin = self.round.stream.view.epoch
        return freed

    Chunk.adopt = adopt  # type: ignore[method-assign]


OF_VIEWS = {
    rule.__name__: rule for rule in (move_of_all, xor, one_view, stable_of_the_view, origin)
}
RULES = {
    rule.__name__: rule
    for rule in (
        rank_order,
        dedupe,
        immutability,
        freeing,
        redelivery,
        telling_again,
        moving,
        incarnation,
    )
}


def main() -> int:
    run_interpreted()
    from reducer.wire.codes import DType
    from reducer.wire.errors import InternalError
    from tests.support import worker_storm
    from tests.support.simcluster import StuckError
    from tests.support.storm import Storm
    from tests.support.worker_storm import WorkerStorm

    rule = sys.argv[1] if len(sys.argv) > 1 else ""
    if rule in FIRST:
        worker_storm.dtypes_of = lambda seed, keys: dict.fromkeys(keys, DType.FLOAT32)
    if rule:
        {**RULES, **OF_VIEWS}[rule]()
    storms: list[tuple[Any, int]] = []
    if rule not in OF_VIEWS:
        storms.append((Storm, SEEDS))
    if rule not in RULES:
        storms.append((WorkerStorm, SEEDS_OF_VIEWS))
    first = FIRST.get(rule, 0)
    try:
        for storm, seeds in storms:
            for seed in range(first, first + seeds):
                storm(seed, ROUNDS).run()
    except (AssertionError, InternalError, StuckError) as error:
        print(f"seed {seed}: {str(error)[:200]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
