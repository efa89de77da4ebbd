"""The core without one of its rules, in storms of faults: ``python -m tests.support.broken RULE``.

Exits with 1 when a storm shows that the rule is missing, and prints how; with 0 when none does.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.counts import draws
from tests.support.interpreted import run_interpreted

SEEDS = draws(3, 100)  # the first storm shows each missing rule
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

    Run.move = lambda self, route: []  # type: ignore[method-assign]


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
    from reducer.wire.errors import InternalError
    from tests.support.simcluster import StuckError
    from tests.support.storm import Storm

    if len(sys.argv) > 1:
        RULES[sys.argv[1]]()
    try:
        for seed in range(SEEDS):
            Storm(seed, ROUNDS).run()
    except (AssertionError, InternalError, StuckError) as error:
        print(f"seed {seed}: {str(error)[:200]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
