"""Decides the steps of a table. The lane with shard 0 decides for all lanes.

Laws:

- T14: the set of a step is decided once for all shards. A set that lost a member before the commit
  is followed by another one, with the next generation.
- T15: a worker is left out of at most `bound` steps in a row; then the step waits for that worker.
  This holds over a promotion, too, and for a worker that was taken out and comes back: steps
  without it count as steps that left it out, up to `bound`. A history of means counts on it. Of a
  worker that comes back later than that, the count begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from reducer.wire.errors import ProtocolError, StaleBaseError


class StepSet:
    """The workers whose gradients a step has: `members` ascending, `weights` in their order."""

    __slots__ = ("generation", "members", "step", "weights")

    def __init__(
        self, step: int, generation: int, members: tuple[int, ...], weights: tuple[int, ...]
    ) -> None:
        self.step = step
        self.generation = generation
        self.members = members
        self.weights = weights


class StepOwner:
    """`step` is the open step; `set` its set, once it is decided.

    `excluded` and `taken`: how many steps each worker was left out of, and was in. `last_in`: by
    worker, the last committed step whose set had the worker, or the step before the worker came. It
    outlives the worker's absence.
    """

    def __init__(self, quorum: int, workers: int, bound: int) -> None:
        self.step = 1
        self.set: StepSet | None = None
        self.last: StepSet | None = None  # of the step before, which was committed
        self.excluded: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self._quorum = quorum
        self._founders = workers
        self._all = quorum == workers  # then the set is everybody, however many there are
        self._bound = bound
        self._awaited = workers  # of the first step
        self._members: set[int] = set()
        self._seen: set[int] = set()
        self._entered: dict[int, int] = {}  # weights by worker, in the order of arrival
        self.last_in: dict[int, int] = {}
        self._base = 0
        self._generation = 0

    @property
    def leaves_out(self) -> bool:
        """Whether a set may be smaller than the table's workers."""
        return not self._all

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def absent(self) -> int:
        """The number of workers that must still come before the first step."""
        return max(0, self._awaited - len(self._seen))

    @property
    def size(self) -> int:
        """The number of workers that take part in the table's steps."""
        return len(self._members)

    def members(self) -> list[int]:
        """The workers that take part in the table's steps, ascending."""
        return sorted(self._members)

    def entered(self) -> list[int]:
        """The workers that have entered the open step, in the order of arrival."""
        return list(self._entered)

    def awaited(self) -> list[int]:
        """The workers that have not entered the open step, ascending; none after the decision."""
        return [] if self.set is not None else sorted(self._members - self._entered.keys())

    def begin_at(self, step: int) -> None:
        """The table was restored: its first step is this one."""
        if step > self.step:
            self.step = step
            self.last_in = dict.fromkeys(self.last_in, step - 1)

    def begin_term(self, term: int) -> None:
        """Sets of this term have generations above those of every earlier term."""
        self._base = term << 16
        self._generation = max(self._generation, self._base)

    def restore(self, committed: StepSet) -> None:
        """Another lane has committed this set."""
        self.last, self.step = committed, committed.step + 1
        self._awaited = 0
        self.last_in.update(dict.fromkeys(committed.members, committed.step))

    def lead(self, known: Sequence[int]) -> None:
        """The backup has become the primary, and knows these workers.

        A worker that was in a recent set takes part, whether or not it has connected here yet: else
        the first workers to come could leave it behind. A worker that does not come is taken out.
        Workers that take no part in this table must not be awaited, so a worker without a set
        counts only if there are no more workers than the first step has waited for.
        """
        if self.last is None:
            return  # the first step waits for all
        none = 0 if len(known) <= self._founders else -1 - self._bound
        for worker in known:
            if self.step - 1 - self.last_in.get(worker, none) <= self._bound:
                self.join(worker)

    def join(self, worker: int) -> None:
        if worker not in self._members:
            newest = self.step - 1
            # A promoted lane does not know since when a worker takes part that is in no set so far.
            is_strange = self._awaited == 0 and worker not in self._seen
            last = self.last_in.setdefault(worker, 0 if is_strange else newest)
            if newest - last > self._bound and not is_strange:
                self.last_in[worker] = newest
        self._members.add(worker)
        self._seen.add(worker)

    def decide(self) -> bool:
        """A worker has come, perhaps the last that the first step waits for. Returns whether this
        decides a set.
        """
        return self.set is None and self._decide([])

    def leave(self, worker: int) -> bool:
        """The worker is lost or has left. Returns whether the set has changed."""
        self._members.discard(worker)
        self._entered.pop(worker, None)
        if self.set is not None and worker in self.set.members:
            kept = [member for member in self.set.members if member != worker]
            self.set = None
            self._generation += 1
            return self._decide(kept)
        return self.set is None and self._decide([])

    def enter(self, worker: int, step: int, weight: int) -> bool | None:
        """The worker has its gradient of the step. Returns whether a set was decided; None if the
        worker is late.

        Raises StaleBaseError for a step that the table has not reached.
        """
        if worker not in self._members:
            raise ProtocolError(f"worker {worker} enters step {step} and takes no part in it")
        if step > self.step:
            raise StaleBaseError(
                f"worker {worker} enters step {step}, and the table is at step {self.step}: was "
                "the table restored? Pull its parameters first"
            )
        if step < self.step:
            return None
        self._entered.setdefault(worker, weight)
        if self.set is not None:
            return False if worker in self.set.members else None
        return self._decide([])

    def late(self) -> list[int]:
        """The workers that have entered the open step and are not in its set."""
        if self.set is None:
            return []
        return [worker for worker in self._entered if worker not in self.set.members]

    def commit(self, step: int, generation: int) -> bool:
        """All lanes have folded this generation. Returns whether this decides the step now."""
        chosen = self.set
        if chosen is None or (step, generation) != (chosen.step, chosen.generation):
            return False
        for worker in self._members:
            is_in = worker in chosen.members
            if is_in:
                self.last_in[worker] = step
            counts = self.taken if is_in else self.excluded
            counts[worker] = counts.get(worker, 0) + 1
        self.last, self.set = chosen, None
        self.step += 1
        self._generation = self._base
        self._entered.clear()
        return True

    def _decide(self, kept: list[int]) -> bool:
        """Decide the set if enough workers have entered. `kept`: the members of the last set."""
        if len(self._seen) < self._awaited or not self._members:
            return False
        present = len(self._members)
        wanted = present if self._all else min(self._quorum, present)
        due = [w for w in self._members if self.step - 1 - self.last_in[w] >= self._bound]
        if any(worker not in self._entered for worker in due):
            return False
        first = kept + [worker for worker in self._entered if worker not in kept]
        if len(first) < wanted or not first:
            return False
        members = tuple(sorted({*first[:wanted], *due}))
        weights = tuple([self._entered[worker] for worker in members])
        self.set = StepSet(self.step, self._generation, members, weights)
        return True
