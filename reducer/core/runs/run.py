"""One formed run of a job on one lane: contributions in, results out.

The run knows ranks, keys, rounds and credits; the lane above it knows sessions and members. Output
order matters: a buffer is freed only after the last output that reads it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from reducer.core.limits.budget import RankLimits
from reducer.core.limits.charges import RANK, Records, slot_bytes
from reducer.core.limits.held import HeldBytes
from reducer.core.measures.ranking import most
from reducer.core.rounds.chunk_owners import Route
from reducer.core.rounds.header_checks import Plans
from reducer.core.rounds.key_table import IdleKeys, KeyTable
from reducer.core.rounds.stream import Streams
from reducer.core.rounds.view import View
from reducer.core.runs.contributions import Contributions
from reducer.core.runs.flow import Flow
from reducer.core.runs.mismatches import Mismatches
from reducer.core.runs.moves import Moves
from reducer.core.runs.positions import PassedRounds, Positions
from reducer.core.runs.results import Results
from reducer.core.runs.retelling import Retelling
from reducer.core.runs.round_messages import RoundMessages
from reducer.core.runs.seats import Seats
from reducer.core.runs.stalls import Stalls
from reducer.core.runs.sums import Sums
from reducer.core.runs.terms import Terms
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output
from reducer.core.surface.settings import LaneSettings
from reducer.wire import messages


class Run:
    """The parts of one run, connected. `Members` sets `seats`."""

    def __init__(
        self, terms: Terms, settings: LaneSettings, route: Route, view: View, limits: RankLimits
    ) -> None:
        self.terms = terms
        self.number = number = terms.number
        self.name = terms.job
        self.run_id = terms.run_id
        self.title = title = terms.title
        self.world_size = world_size = terms.world_size
        crc, max_keys = settings.crc32c, settings.max_keys
        self.idle = idle = IdleKeys()
        self.records = records = Records(
            title, limits.room_for_records(world_size), idle.take_apart
        )
        records.take(RANK * world_size + slot_bytes(len(route.live), terms.weights))
        self.held = HeldBytes()
        self.streams = Streams(
            terms.slot, settings.lane, route, view, terms.weights, records, self.held,
            lambda view, moved, records, untold: KeyTable(
                title, view, max_keys, moved, records, idle, untold
            ),
        )  # fmt: skip
        self.seats = Seats(number, view, crc)
        flow = Flow(limits, world_size, self.seats, crc)
        self.accounts, self.open = flow.accounts, flow.open
        self.mismatches = Mismatches(terms, self.seats, flow)
        self.passed = PassedRounds(number, self.accounts, self.mismatches, flow.grants)
        self.retelling = Retelling(self.seats, self.mismatches)
        self.results = Results(terms, self.seats, self.accounts, flow.grants, crc, settings.traced)
        self.sums = Sums(terms, settings, self.results)
        self.positions = Positions(limits, self.seats, self.streams, self.held, self.passed)
        plans = Plans(world_size, terms.table, records, terms.elastic)
        self.contributions = Contributions(
            plans, terms, self.seats, self.streams, flow, self.mismatches, self.sums, self.positions
        )
        self.round_messages = RoundMessages(plans, self.seats, self.streams, self.mismatches)
        self.moves = Moves(number, flow, self.sums)
        self.stalls = Stalls(terms, self.seats, self.open)
        self.reconnects = 0
        self.failovers = 0
        self._flow = flow
        self._freed: list[Buffer] = []  # by `drop_all`

    def about(self) -> dict[str, object]:
        """The fields of log lines about the run."""
        return self.terms.about()

    @property
    def route(self) -> Route:
        return self.streams.route

    @property
    def stream_count(self) -> int:
        """How many streams have tables in use."""
        return len(self.streams) + len(self.moves.streams)

    @property
    def view(self) -> View:
        return self.streams.view

    def move(self, route: Route, view: View) -> list[Output]:
        """Take a newer route, and drop the streams that it moves away."""
        out: list[Output] = []
        self.seats.view = view
        pairs = zip(self.route.live, route.live, strict=True)
        self.failovers += sum(1 for before, after in pairs if before and not after)
        moved = self.streams.move(route, view)
        for stream in moved:
            self.positions.drop(stream)
            self.moves.add(stream)
        self.moves.drop_some(out)
        if self.moves:
            self.seats.ask_for_turns(out)
        if moved:
            self._flow.grants.grant_oldest(out)
        return out

    def rejoined(self, rank: int) -> list[Output]:
        """The rank has been welcomed on a new connection: repeat what it may have missed."""
        out: list[Output] = []
        self._flow.debts.begin_again(rank)
        self.retelling.add(rank)
        self._flow.grants.again(rank, out)
        self.seats.ask_for_turns(out)
        return out

    @property
    def is_behind(self) -> bool:
        """Whether the run has work that waits for its turns."""
        return bool(self.sums.behind or self.moves or self.passed or self.retelling)

    def catch_up(self, now: float) -> list[Output]:
        """Do the next part of the work that waits, in this order.

        Sums come first, then streams that have moved away, rounds that ranks have passed, and what
        ranks have missed.
        """
        out: list[Output] = []
        if self.sums.behind:
            self.sums.go_on(now, out)
        elif self.moves:
            self.moves.drop_some(out)
        elif self.passed:
            self.passed.forget_more(out)
        else:
            return self.retelling.tell(self.streams, now)
        return out

    def stats(self, waiting: tuple[dict[str, Any], ...] = ()) -> messages.Stats:
        came, sent = self.contributions, self.results
        return messages.Stats(
            came.bytes_in, sent.bytes_out, came.taken, sent.sent, came.duplicates, sent.rounds,
            len(self.open), self.records.keys, self.held.total, most(sent.last_ranks), waiting,
        )  # fmt: skip

    def drop_all(self) -> list[Output]:
        """The run is over: free all its buffers. If this raises, it can be called again."""
        freed = self._freed
        for stream in chain(self.streams, self.moves.streams):
            stream.drop(freed)
        self.streams.clear()
        self.positions.clear()
        self.moves.streams.clear()
        self.open.clear()
        self.sums.clear()
        self.passed.clear()
        self._freed = []
        return [Free(self.number, freed)]
