"""The keys of a run in one stream: names, positions, and when a key is forgotten."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator

from reducer.core.containers.ascending import Ascending
from reducer.core.containers.listing import Listing
from reducer.core.containers.tables import Numbered
from reducer.core.limits.charges import KEY, KEY_RANK, STREAM, Records, text_bytes
from reducer.core.rounds.chunk_plan import ChunkPlan
from reducer.core.rounds.descriptor import Descriptor
from reducer.core.rounds.key import ENTRY, Key, Untold, payload_of
from reducer.core.rounds.round import Chunk, Round, StreamRounds
from reducer.core.rounds.view import View
from reducer.core.surface.buffer import Buffer
from reducer.wire.codes import MAX_CHUNKS
from reducer.wire.errors import ProtocolError, RecordsError
from reducer.wire.header import Header
from reducer.wire.keys import key_id


class KeyRounds(Key):
    """A key with its rounds.

    `held`: the complete chunks that are not stable yet, by position. `ascending`: the numbers of
    the rounds, only in a stream that a route has moved here: its earlier owner may have completed
    some of these rounds.
    """

    __slots__ = ("_view", "ascending", "held", "rounds")

    def __init__(self, id_: int, view: View) -> None:
        super().__init__(id_, view)
        self._view = view
        self.rounds: Numbered[Round] = Numbered()
        self.ascending: Ascending | None = None
        self.held: list[Chunk] = []  # a list: an empty deque takes more memory

    def described(self, stream: StreamRounds, header: Header, plan: ChunkPlan, now: float) -> Round:
        """Return the record of a round. The round's first frame makes the record and describes the
        round.

        Raises RecordsError.
        """
        round_ = self.rounds.get(header.round)
        if round_ is None:
            round_ = self.begin(stream, header.round, now)
        if round_.descriptor is None and not round_.void:
            round_.describe(Descriptor(header), plan, stream.place.owned(self.id, plan.chunks))
        return round_

    def begin(self, stream: StreamRounds, number: int, now: float) -> Round:
        """Make the record of a round; raises RecordsError."""
        round_ = Round(stream, self, number, now)
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
        """Whether there may be incomplete rounds or chunks whose results every rank holds."""
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
        """Forget the chunks below `stable`. Returns their buffers and their cost."""
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
            cost += chunk.cost
            round_.forget_chunk(chunk)
            self.forget_if_over(round_)
        del self.held[:passed]
        return freed, cost

    def first_passed(self) -> Round | None:
        """The first round whose results every rank holds, although it is not complete here."""
        if self.ascending is None:
            return None
        number = self.ascending.first_below(self.stable // MAX_CHUNKS, self.rounds)
        return None if number is None else self.rounds[number]

    def forget_if_over(self, round_: Round) -> None:
        """Forget the round if nothing of it is left to do or to hold."""
        if round_.chunks:
            return
        over = len(round_.abandoned) == self._view.count if round_.void else round_.left == 0
        if over:
            self.forget(round_)

    def forget_rounds(self, most: int) -> int:
        """Forget rounds with records of `most` bytes or a little more. Returns the bytes."""
        took = 0
        while took < most and len(self.rounds):
            round_ = self.rounds.pop_last()
            took += round_.charged
            round_.give_back()
        if not len(self.rounds):
            self.held.clear()  # each chunk refers to its round and its key
        return took

    def forget(self, round_: Round) -> None:
        if self.rounds.pop(round_.number) is not None:
            if self.ascending is not None:
                self.ascending.removed(self.rounds)
            round_.give_back()


def _position(chunk: Chunk) -> int:
    return chunk.position


class KeyTable:
    """The keys of one stream; `listing` has all of them, for walks in parts.

    `moved`: a route has moved the stream here, so ranks may report keys that are new to this lane
    (PROTOCOL.md, section 11).
    """

    def __init__(
        self,
        job: str,
        view: View,
        max_keys: int,
        moved: bool,
        records: Records,
        idle: IdleKeys,
        untold: Untold,
    ) -> None:
        self._untold = untold
        self.records = records
        self._idle_keys = idle
        self._job = job
        self._view = view
        self._size = KEY + KEY_RANK * view.world_size
        self._max_keys = max_keys
        self._moved = moved
        self.listing: Listing[KeyRounds] = Listing()
        self._keys: Numbered[KeyRounds] = Numbered()
        # Each key at most once, so a rank that repeats a report does not make the queue longer.
        self._idle: deque[tuple[float, KeyRounds]] = deque()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._keys

    def __getitem__(self, id_: int) -> KeyRounds:
        return self._keys[id_]

    def __iter__(self) -> Iterator[KeyRounds]:
        return iter(self._keys.values())

    def open(self, id_: int, now: float) -> KeyRounds:
        """Return the record of a key, which is made if the key is new; raises RecordsError."""
        key = self._keys.get(id_)
        if key is None:
            if len(self._keys) >= self._max_keys:
                raise RecordsError(
                    f"job {self._job!r} has {len(self._keys):,} keys in use, "
                    f"the limit is {self._max_keys:,} (--max-keys): does the job make new keys at "
                    "each step?"
                )
            self.records.take(self._size)
            try:
                self._keys[id_] = key = KeyRounds(id_, self._view)
                self.listing.add(key)
            except Exception:  # no memory: a key in one of the two alone would break `take_apart`
                self._keys.pop(id_)
                self.records.give(self._size)
                raise
            self.records.keys += 1
        key.touched_at = now
        return key

    def announce(self, id_: int, name: str, now: float) -> None:
        """Take the name of a key; raises ProtocolError for a wrong id or two names with one id."""
        if key_id(name) != id_:
            raise ProtocolError(f"{id_:#x} is not the id of key {name!r}")
        key = self.open(id_, now)
        if key.name and key.name != name:
            raise ProtocolError(
                f"keys {key.name!r} and {name!r} have the same id {id_:#x}: rename one of them"
            )
        if not key.name:
            self.records.take(text_bytes(name))
            key.name = name
        self.maybe_idle(key)

    def report(self, key: KeyRounds, rank: int, done: int) -> list[Buffer] | None:
        """Take a rank's done position. Returns the results to free, or None if `stable` did not
        rise.
        """
        if not key.take_done(rank, done):
            return None
        self._untold.add(key, key.holds_stable)  # first: if this raises, nothing is lost
        freed, cost = key.release()
        self._untold.charge(key, cost)
        self.maybe_idle(key)
        return freed

    def entries(self, payload: memoryview, rank: int, now: float) -> list[tuple[KeyRounds, int]]:
        """Return the done positions of a rank's HEARTBEAT that are new, one for each key.

        Raises ProtocolError for a malformed list, and RecordsError. No position was taken then.
        """
        if len(payload) % ENTRY.size:
            raise ProtocolError(f"a heartbeat of {len(payload)} bytes is no list of entries")
        if self._moved:
            for id_, _ in ENTRY.iter_unpack(payload):
                self.maybe_idle(self.open(id_, now))
        found: dict[KeyRounds, int] = {}
        for id_, done in ENTRY.iter_unpack(payload):
            key = self._keys.get(id_)
            if key is not None:
                key.touched_at = now
                if key.is_news(rank, done) and done > found.get(key, 0):
                    found[key] = done
        return list(found.items())

    def payload(self, keys: list[KeyRounds], now: float) -> bytes:
        """A HEARTBEAT with the stable positions of keys, for a rank that may have missed them.

        The keys count as used now.
        """
        for key in keys:
            key.touched_at = now
        return payload_of(key for key in keys if key.stable)

    def maybe_idle(self, key: KeyRounds) -> None:
        if not key.rounds and not key.idles:
            key.idles = True
            if not self._idle:
                self._idle_keys.wait(self, key.touched_at)
            self._idle.append((key.touched_at, key))

    @property
    def idle_since(self) -> float | None:
        """When the first key in the queue of idle keys was touched; None if the queue is empty."""
        return self._idle[0][0] if self._idle else None

    def forget_idle(self, before: float, most: int) -> int:
        """Forget keys that are idle since `before`.

        Returns the bytes of the records that were looked at: `most`, or up to one key more. A key
        that was touched meanwhile is queued again, because perhaps no later frame would queue it. A
        key whose stable position was not told is queued again as well, because `Untold` still
        refers to it.
        """
        looked = 0
        while looked < most and self._idle and self._idle[0][0] < before:
            looked += self._size
            _, key = self._idle.popleft()
            key.idles = False
            if key in self._untold:
                key.touched_at = max(before, key.touched_at)
            if key.touched_at >= before:
                self.maybe_idle(key)
            elif not key.rounds:
                self._keys.pop(key.id)
                self._give_back(key)
        return looked

    def _give_back(self, key: KeyRounds) -> None:
        self.listing.remove(key)
        self.records.give(self._size)
        self.records.keys -= 1
        if key.name:
            self.records.give(text_bytes(key.name))

    def end(self) -> None:
        """Stop using the table. The run takes it apart in parts."""
        self._idle_keys.end(self)

    def take_apart(self, most: int) -> int:
        """Forget rounds and keys with records of about `most` bytes, and the table when it is
        empty.

        Returns the bytes.
        """
        took = 0
        while took < most and len(self._keys):
            key = self._keys.pop_last()
            took += key.forget_rounds(most - took)
            if key.rounds:
                self._keys[key.id] = key
                break
            self._give_back(key)
            took += self._size
            if self._idle:
                self._idle.pop()
            self._untold.drop_last()
        if not len(self._keys):
            self.records.give(STREAM)
            took += STREAM
        return took


class IdleKeys:
    """The tables of a run that have idle keys, each with the time of its first idle key.

    A table that had its turn goes to the end of the queue, so its keys may
    wait for up to twice the idle time after which keys are forgotten.
    Tables of ended streams come first: their records take room until the tables are taken apart.
    """

    def __init__(self) -> None:
        self._since: OrderedDict[KeyTable, float] = OrderedDict()
        self._ended: deque[KeyTable] = deque()

    def __len__(self) -> int:
        return len(self._since)

    @property
    def is_clean(self) -> bool:
        """Whether the table of every ended stream was taken apart."""
        return not self._ended

    def wait(self, table: KeyTable, since: float) -> None:
        self._since[table] = since

    def end(self, table: KeyTable) -> None:
        """Note that the stream of the table has ended."""
        self._since.pop(table, None)
        self._ended.append(table)

    def drop_ended(self) -> None:
        """Drop the tables of ended streams as they are. Their records stay charged."""
        self._ended.clear()

    def take_apart(self, most: int) -> int:
        """Forget keys of ended streams, with records of about `most` bytes. Returns the bytes."""
        took = 0
        while self._ended and took < most:
            table = self._ended[0]
            took += table.take_apart(most - took)
            if not len(table):
                self._ended.popleft()
        return took

    def forget(self, before: float, most: int) -> int:
        """Forget keys of ended streams, and keys that are idle since `before`.

        Returns the bytes of the records that were looked at, about `most` at most.
        """
        looked = self.take_apart(most)
        while self._since and looked < most:
            table, since = next(iter(self._since.items()))
            if since >= before:
                break
            looked += table.forget_idle(before, most - looked)
            first = table.idle_since
            if first is None or first >= before:
                del self._since[table]
                if first is not None:
                    self._since[table] = first
        return looked
