"""The open step of a table on one lane: contributions, their means, and the chosen set."""

from __future__ import annotations

from reducer.core.surface.buffer import Buffer
from reducer.core.tables.owner import StepSet


class StepSums:
    """`parts`: contributions to the open step, by shard and worker, until it is committed.

    `means`: the means of the set `chosen`, by shard. Another generation discards means, never
    parts. `learning_rate`: the learning rate of the set; None is the optimizer's own. `last_in`: by
    worker, the last committed step whose set had the worker.
    """

    __slots__ = ("chosen", "last_in", "learning_rate", "means", "parts", "pending")

    def __init__(self) -> None:
        self.chosen: StepSet | None = None
        self.learning_rate: float | None = None
        self.parts: dict[int, dict[int, Buffer]] = {}
        self.means: dict[int, Buffer] = {}
        self.last_in: dict[int, int] = {}
        self.pending: set[int] = set()  # shards whose mean is being computed

    def has(self, shard: int, worker: int) -> bool:
        return worker in self.parts.get(shard, {})

    def keep(self, shard: int, worker: int, buffer: Buffer) -> None:
        self.parts.setdefault(shard, {})[worker] = buffer

    def is_newer(self, chosen: StepSet) -> bool:
        """Whether the set comes after the one that the lane knows."""
        if self.chosen is None:
            return True
        known = (self.chosen.step, self.chosen.generation)
        return (chosen.step, chosen.generation) > known

    def choose(self, chosen: StepSet, rate: float | None) -> list[Buffer]:
        """Another set. Returns the means that are discarded."""
        self.chosen, self.learning_rate = chosen, rate
        discarded = list(self.means.values())
        self.means.clear()
        self.pending.clear()
        return discarded

    def due(self, shard: int) -> list[Buffer]:
        """The parts of the shard in the order of workers, if all are there and unused; else []."""
        if self.chosen is None or shard in self.means or shard in self.pending:
            return []
        parts = self.parts.get(shard, {})
        if not parts.keys() >= set(self.chosen.members):
            return []
        return [parts[member] for member in self.chosen.members]

    def end(self) -> tuple[dict[int, Buffer], dict[int, dict[int, Buffer]]]:
        """The step is committed. Returns its means and all its parts, and forgets them."""
        if self.chosen is not None:
            self.last_in.update(dict.fromkeys(self.chosen.members, self.chosen.step))
        means, self.means = self.means, {}
        parts, self.parts = self.parts, {}
        self.pending.clear()
        return means, parts

    def forget(self, worker: int) -> list[Buffer]:
        """The worker is lost. Returns its contributions, unless the set has the worker."""
        if self.chosen is not None and worker in self.chosen.members:
            return []
        return [parts.pop(worker) for parts in self.parts.values() if worker in parts]

    def buffers(self) -> list[Buffer]:
        found = list(self.means.values())
        return found + [buffer for parts in self.parts.values() for buffer in parts.values()]
