"""Takes done positions of ranks, and sends stable positions to them (PROTOCOL.md, section 8)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from reducer.core.limits.budget import RankLimits
from reducer.core.limits.held import HeldBytes
from reducer.core.rounds.key_table import KeyRounds
from reducer.core.rounds.round import Round
from reducer.core.rounds.stream import Stream, Streams
from reducer.core.runs.flow import Accounts, Grants
from reducer.core.runs.mismatches import Mismatches
from reducer.core.runs.seats import Seats
from reducer.core.surface.buffer import Buffer
from reducer.core.surface.events import Free, Output, Send
from reducer.wire.codes import MAX_CHUNKS, MAX_HEARTBEAT_ENTRIES
from reducer.wire.errors import UnstableError
from reducer.wire.header import Header

# The work of one turn, in rounds and chunks of 3 to 5 us each. RANKS_AT_ONCE ranks of a chunk count
# as one more, and so do RECORDS_AT_ONCE bytes of a round's records.
FORGOTTEN_AT_ONCE: Final = 256
RANKS_AT_ONCE: Final = 8
RECORDS_AT_ONCE: Final = 4_096
# Stable positions that are told before the next heartbeat if they are all that is left to tell.
# More would take a frame's time.
TOLD_AT_ONCE: Final = 256


class PassedRounds:
    """Rounds below the stable position that are still open here: these are forgotten in parts.

    Every rank holds their results, which come from an earlier stream. A rank that did not know the
    stable position has sent its chunks here again. `_keys`: the keys with such rounds, by the time
    that they have waited.
    """

    def __init__(
        self, run: int, accounts: Accounts, mismatches: Mismatches, grants: Grants
    ) -> None:
        self._run = run
        self._accounts = accounts
        self._mismatches = mismatches
        self._grants = grants
        self._keys: OrderedDict[KeyRounds, Stream] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, stream: Stream, key: KeyRounds) -> None:
        """The stable position of the key has risen."""
        if key.has_passed:
            self._keys[key] = stream

    def forget_more(self, out: list[Output]) -> None:
        """Forget the next part, of the keys that have waited longest."""
        left = FORGOTTEN_AT_ONCE
        while left > 0 and self._keys:
            key, stream = next(iter(self._keys.items()))
            if not stream.is_over:
                left = self._forget_some(key, left, out)
                stream.keys.maybe_idle(key)
                if key.has_passed:
                    break
            del self._keys[key]
            left -= 1

    def clear(self) -> None:
        self._keys.clear()

    def _forget_some(self, key: KeyRounds, left: int, out: list[Output]) -> int:
        """Forget at most `left` rounds and chunks. Returns how much of `left` remains."""
        over = list[Round]()
        while left > 0 and (round_ := key.first_passed()) is not None:
            left -= 1 + self._drop(round_, MAX_CHUNKS, left, out)
            if round_.has_passed(MAX_CHUNKS):
                break
            left -= round_.charged // RECORDS_AT_ONCE
            self._mismatches.forget(round_)
            key.forget(round_)
            over.append(round_)
        number, index = divmod(key.stable, MAX_CHUNKS)
        under_way = key.rounds.get(number)
        if left > 0 and under_way is not None:
            left -= self._drop(under_way, index, left, out)
            if under_way.left == 0:
                over.append(under_way)
        self._grants.end_all(over, out)
        return left

    def _drop(self, round_: Round, index: int, most: int, out: list[Output]) -> int:
        """Drop incomplete chunks before `index`: one, or more as `most` allows.

        Returns how much of `most` this took.
        """
        each = 1 + len(round_.contributed) // RANKS_AT_ONCE
        chunks = round_.passed(index, max(1, most // each))
        for chunk in chunks:
            for rank in chunk.charged():
                self._accounts.settle(rank, chunk.cost)
            freed: list[Buffer] = []
            out.append(Free(self._run, freed))
            chunk.drop_passed(freed)
        return len(chunks) * each


class Positions:
    """Tells the ranks the stable positions of each stream. `_changed` lists streams with news."""

    def __init__(
        self,
        limits: RankLimits,
        seats: Seats,
        streams: Streams,
        held: HeldBytes,
        passed: PassedRounds,
    ) -> None:
        self._credit = limits.credit
        self.most_unstable = limits.unstable
        self._seats = seats
        self._streams = streams
        self.held = held
        self._passed = passed
        # A plain dict finds its first entry only after a walk over the removed ones before it.
        self._changed: OrderedDict[Stream, None] = OrderedDict()

    @property
    def has_news(self) -> bool:
        """Whether stable positions may have changed that the ranks were not told."""
        return bool(self._changed)

    def heartbeat(
        self,
        rank: int,
        header: Header,
        payload: memoryview | None,
        now: float,
        out: list[Output],
    ) -> None:
        """HEARTBEAT of a worker: done positions of keys in one stream."""
        if payload is None:
            return
        stream = self._streams.find(rank, header.chunk, header)
        if stream is None:
            return
        for key, done in stream.keys.entries(payload, rank, now):
            freed = stream.keys.report(key, rank, done)
            if freed is not None:
                self.rise(stream, key, freed, out)
            stream.keys.maybe_idle(key)
        if not self.held.unstable and 0 < len(stream.untold) <= TOLD_AT_ONCE:
            out.append(self._tell(stream, TOLD_AT_ONCE))  # ranks that leave wait for this
        else:
            self.tell_in_time(stream, out)

    def rise(self, stream: Stream, key: KeyRounds, freed: list[Buffer], out: list[Output]) -> None:
        """The stable position of the key has risen, so the results `freed` are free."""
        self._changed[stream] = None
        if freed:
            out.append(Free(self._seats.run, freed))
        if stream.since:
            had_turns = bool(self._passed)
            self._passed.add(stream, key)
            if self._passed and not had_turns:
                self._seats.ask_for_turns(out)

    def tell_in_time(self, stream: Stream, out: list[Output]) -> None:
        """Send stable positions before the next heartbeat if they are worth half a credit.

        This sends one frame. Positions beyond it follow in later frames.
        """
        if 2 * stream.untold.cost >= self._credit:
            out.append(self._tell(stream, MAX_HEARTBEAT_ENTRIES))

    def beat(self, most: int) -> Send:
        """A HEARTBEAT to every rank: up to `most` changed stable positions, or an empty one."""
        while self._changed:
            stream = next(iter(self._changed))
            if stream.untold:
                return self._tell(stream, most)
            del self._changed[stream]
        return self._seats.empty_heartbeat()

    def drop(self, stream: Stream) -> None:
        """The stream has moved away."""
        self._changed.pop(stream, None)

    def clear(self) -> None:
        self._changed.clear()

    def _tell(self, stream: Stream, most: int) -> Send:
        send = self._seats.heartbeat(stream, stream.untold.tell(most), self._seats.present)
        if not stream.untold:
            self._changed.pop(stream, None)
        return send

    def too_unstable(self) -> UnstableError:
        """The error for too many results that are not stable.

        It names the key that keeps the most chunks, and the rank that has not reported them.
        """
        keys = (key for stream in self._streams for key in stream.keys)
        key = max(keys, key=_kept)
        rank = key.slowest()
        number, chunk = divmod(key.stable, MAX_CHUNKS)
        text = (
            f"rank {rank} has reported key {key.label} as done up to round {number} chunk {chunk}, "
            f"and {len(key.held):,} chunks of the key are complete since: results that are not "
            f"stable take {self.held.unstable:,} bytes, the limit is {self.most_unstable:,}"
        )
        return UnstableError(text, rank)


def _kept(key: KeyRounds) -> int:
    return len(key.held)
