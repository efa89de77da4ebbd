"""Watches when workers enter a table's open step, and which workers are left out of many steps.

Law: a worker that was left out of more than MAX_LEFT_OUT of the last WINDOW steps is named in the
log, once.
"""

from __future__ import annotations

import logging
from typing import Final

from reducer.core.surface.events import Log, Output, Traced, Wait
from reducer.core.tables.owner import StepOwner, StepSet
from reducer.wire.table_messages import TableCall

WINDOW: Final = 100
MAX_LEFT_OUT: Final = 5  # 5 %: beyond that, the model hardly sees the worker's part of the data


class StepWatch:
    """Belongs to the lane that decides the steps. `opened_at`: when the first worker entered."""

    __slots__ = (
        "_entered", "_half_at", "_heard_at", "_last", "_last_at", "_named", "_recent", "_size",
        "_spec", "opened_at",
    )  # fmt: skip

    def __init__(self, spec: TableCall, size: int) -> None:
        """`size`: bytes of one contribution on this lane."""
        self._spec = spec
        self._size = size
        self._recent: dict[int, tuple[int, int]] = {}  # steps; a bit for each, 1: left out
        self._named: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self.opened_at = 0.0
        self._half_at: float | None = None
        self._entered: set[int] = set()
        self._last = -1
        self._last_at = 0.0
        self._heard_at = 0.0

    def entered(self, owner: StepOwner, worker: int, now: float) -> None:
        """The worker has entered the open step in time, perhaps again."""
        if worker in self._entered:
            return
        self._entered.add(worker)
        self._last, self._last_at = worker, now
        if len(self._entered) == 1:
            self.opened_at = now
        if self._half_at is None and 2 * len(self._entered) >= owner.size:
            self._half_at = now

    def heard(self, owner: StepOwner, worker: int, now: float) -> None:
        """A contribution of the worker to the open step is complete."""
        if owner.set is None or worker in owner.set.members:
            self._heard_at = now

    def committed(
        self, owner: StepOwner, job: str, now: float, is_traced: bool, out: list[Output]
    ) -> None:
        """The owner has committed the open step."""
        chosen = owner.last
        assert chosen is not None
        if is_traced:
            out.append(self._traced(chosen, job, now))
        self._begin()
        if owner.leaves_out:
            for worker in owner.members():
                missed = self._count(worker, worker not in chosen.members)
                if missed > MAX_LEFT_OUT and worker not in self._named:
                    self._named.add(worker)
                    text = self._text(job, worker, missed)
                    out.append(Log(0, logging.WARNING, text, {"job": job, "worker": worker}))

    def _count(self, worker: int, is_out: bool) -> int:
        """How many of the last WINDOW steps left the worker out; 0 before WINDOW steps."""
        steps, bits = self._recent.get(worker, (0, 0))
        bits = (bits << 1 | is_out) & ((1 << WINDOW) - 1)
        steps = min(WINDOW, steps + 1)
        self._recent[worker] = (steps, bits)
        return bits.bit_count() if steps == WINDOW else 0

    def _text(self, job: str, worker: int, missed: int) -> str:
        spec = self._spec
        late = "dropped" if spec.late == "drop" else "added to those of later steps"
        return (
            f"job {job!r}: worker {worker} was left out of {missed} of the last {WINDOW} steps of "
            f"table {spec.name!r} (quorum {spec.quorum} of {spec.workers}): it is slower than the "
            f"others, and its gradients of these steps were {late}; give it less work or a faster "
            "machine, or raise the quorum"
        )

    def _traced(self, chosen: StepSet, job: str, now: float) -> Traced:
        since = self._last_at if self._half_at is None else self._half_at
        all_in_at = max(self._heard_at, self._last_at)
        return Traced(
            0, job, f"table {self._spec.name}", chosen.step, self._size * len(chosen.members),
            self.opened_at, Wait(self._last, since, self._last_at), all_in_at, now,
        )  # fmt: skip
