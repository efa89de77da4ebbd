"""Remembers the updates of each worker that a shard has seen.

Law (T11): an update is applied exactly once. Its identity is (worker, incarnation, shard, seq), and
seq is contiguous. A repeat is answered by its first outcome; a gap is refused with the mark.
"""

from __future__ import annotations

Answer = tuple[int, int, int]  # outcome, version after the update, staleness


class Mark:
    """The updates of one incarnation of one worker on one shard.

    `last` is the seq of the newest update that was taken. `decided` is the seq of the newest update
    that has an outcome. An update that is taken and not decided has no answer yet.
    """

    __slots__ = ("_answers", "_confirmed", "decided", "last")

    def __init__(self) -> None:
        self.last = 0
        self.decided = 0
        self._confirmed = 0
        self._answers: dict[int, Answer] = {}

    def take(self, seq: int) -> None:
        self.last = seq

    def answer(self, seq: int, answer: Answer) -> None:
        """Keep the outcome until the worker has confirmed it. Outcomes come in order."""
        self.decided = max(self.decided, seq)
        if seq > self._confirmed:
            self._answers[seq] = answer

    def answer_of(self, seq: int) -> Answer | None:
        """The outcome; None if it is not decided, or if the worker has confirmed it."""
        return self._answers.get(seq)

    def rows(self) -> list[tuple[int, Answer]]:
        """The outcomes that the worker has not confirmed, by seq."""
        return sorted(self._answers.items())

    def restore(self, last: int) -> None:
        """Another lane has seen the updates up to `last`."""
        self.last = max(self.last, last)
        self.decided = max(self.decided, last)

    def confirm(self, seq: int) -> None:
        """The worker has the receipts up to `seq`."""
        while self._confirmed < min(seq, self.last):
            self._confirmed += 1
            self._answers.pop(self._confirmed, None)
