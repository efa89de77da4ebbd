"""The frames for one lane: waiting frames, and sent frames that are not answered yet.

Laws:

- Pushes and calls are sent in the order in which they were put in. A pull of a shard is sent behind
  the calls, and the pushes of that shard, that were put in before it. A pull does not wait for
  pushes of other shards, so values come while gradients go. Later pushes may overtake a pull,
  because a pull may wait at the lane for other workers, and they may wait for those pushes. Urgent
  frames are sent first.
- A frame that expects an answer is kept until the answer. After a lost connection all sent frames
  without an answer are sent again, in their order, before the waiting frames.
- The cost of the unanswered frames is at most the credit. The cost of the unanswered pulls is at
  most half of the credit, so pulls never block pushes. One frame is always allowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeAlias

from reducer.wire.codes import Flag, MessageKind, Outcome
from reducer.wire.header import Header

# An answer names its frame by the frame's kind and numbers.
AnswerKey: TypeAlias = tuple[int, int, int, int]

_PUSH = int(MessageKind.PUSH)
_PULL = int(MessageKind.PULL)
_TABLE = int(MessageKind.TABLE)
_VALUES = int(Flag.VALUES)
_HELD = int(Outcome.HELD)
_EMPTY = memoryview(b"")
# The arrays of a shard, in the order in which their first values are sent: slots, then parameters.
_ROOTS = (*range(1, 8), 0)


class Waiter(Protocol):
    """Waits for the answer to an item. The caller of `answered` holds the lock."""

    def answered(self, item: Item, header: Header) -> None: ...


class Item:
    """One frame for a lane.

    ``answers``: the number of frames that answer this one. ``cost``: bytes of credit that the frame
    takes until it is answered. ``table``: the key of its table, or 0. ``behind``: the order of the
    last frame that is sent before this pull. ``marks``: the last push that has its receipt, by
    shard; the value at the time of sending goes into the frame.
    """

    __slots__ = (
        "answers", "behind", "charged", "cost", "header", "is_given_up", "left", "marks", "order",
        "payload", "table", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        header: Header,
        payload: memoryview = _EMPTY,
        *,
        waiter: Waiter | None = None,
        answers: int = 0,
        cost: int = 0,
        table: int = 0,
        marks: list[int] | None = None,
    ) -> None:
        self.header = header
        self.payload = payload
        self.waiter = waiter
        self.answers = answers
        self.cost = cost
        self.table = table
        self.marks = marks
        self.left = answers  # answers that have not come
        self.charged = 0  # bytes of credit that the item takes at the moment
        self.order = 0
        self.behind = 0
        self.is_given_up = False

    @property
    def is_pull(self) -> bool:
        return self.header.kind == _PULL

    @property
    def key(self) -> AnswerKey:
        header = self.header
        if header.kind == _PUSH:
            is_first = header.flags & _VALUES
            return _PUSH, header.key, header.chunk, -1 - header.root if is_first else header.round
        if header.kind == _PULL:
            return _PULL, header.key, header.chunk, header.round
        return _TABLE, header.key, 0, 0


class Outgoing:
    """The caller of each method holds the lock."""

    def __init__(self) -> None:
        self.credit = 0
        self._urgent: deque[Item] = deque()
        self._ordered: deque[Item] = deque()
        self._pulls: deque[Item] = deque()
        self._sent: dict[AnswerKey, Item] = {}
        self._last_order = 0
        self._last_call = 0  # its order
        self._last_push: dict[tuple[int, int], int] = {}  # of a shard of a table: its order
        self._charged = 0
        self._charged_pulls = 0

    def __bool__(self) -> bool:
        """Whether a frame waits or has no answer yet."""
        return bool(self._urgent or self._ordered or self._pulls or self._sent)

    def put(self, items: Iterable[Item], *, urgent: bool = False) -> None:
        for item in items:
            self._last_order += 1
            item.order = self._last_order
            if urgent:
                self._urgent.append(item)
            elif item.is_pull:
                last_push = self._last_push.get((item.header.key, item.header.chunk), 0)
                item.behind = max(self._last_call, last_push)
                self._pulls.append(item)
            else:
                self._note_order(item)
                self._ordered.append(item)

    def _note_order(self, item: Item) -> None:
        if item.header.kind == _PUSH:
            self._last_push[item.header.key, item.header.chunk] = item.order
        else:
            self._last_call = item.order

    def take(self) -> Item | None:
        """The next frame that may be sent now, if there is one."""
        ordered, pulls = self._ordered, self._pulls
        if self._urgent:
            item = self._urgent.popleft()
        elif pulls and not (ordered and ordered[0].order <= pulls[0].behind) and self._may_pull():
            item = pulls.popleft()
        elif ordered and self._may_send(ordered[0]):
            item = ordered.popleft()
        else:
            return None
        if item.answers:
            self._sent[item.key] = item
            self._charge(item, item.cost)
        return item

    def find(self, key: AnswerKey) -> Item | None:
        """The sent frame that an answer names. None: nobody waits for the answer."""
        item = self._sent.get(key)
        return None if item is None or item.is_given_up else item

    def answered(self, key: AnswerKey) -> Item | None:
        """An answer has come. Returns its frame; None if nobody waits for the answer."""
        item = self._sent.get(key)
        if item is None:
            return None
        item.left -= 1
        if item.left <= 0:
            del self._sent[key]
            self._charge(item, 0)
        return None if item.is_given_up else item

    def receipted(self, header: Header) -> Item | None:
        """The frame of a RECEIPT. First values are answered in the order of `_ROOTS`.

        HELD gives the credit back, but the frame stays until its outcome.
        """
        if not header.round:
            keys = ((_PUSH, header.key, header.chunk, -1 - root) for root in _ROOTS)
            return next((self.answered(key) for key in keys if key in self._sent), None)
        key = (_PUSH, header.key, header.chunk, header.round)
        if header.flags != _HELD:
            return self.answered(key)
        if (item := self._sent.get(key)) is not None:
            self._charge(item, 0)
        return None

    def give_up(self, table: int, pull: int = 0) -> None:
        """Discard the waiting frames of a table, or of one of its pulls.

        Sent frames keep their credit until the lane answers them, and the answers are ignored.
        """

        def concerns(item: Item) -> bool:
            return item.table == table and (
                not pull or (item.is_pull and item.header.round == pull)
            )

        for item in filter(concerns, self._sent.values()):
            item.is_given_up = True
        if not pull:
            for key in [key for key in self._last_push if key[0] == table]:
                del self._last_push[key]
        for queue in (self._urgent, self._ordered, self._pulls):
            kept = [item for item in queue if not concerns(item)]
            queue.clear()
            queue.extend(kept)

    def reopened(self) -> None:
        """The connection is new: unanswered frames are sent again."""
        again = [item for item in self._sent.values() if not item.is_given_up]
        self._sent.clear()
        self._charged = self._charged_pulls = 0
        again.sort(key=lambda item: -item.order)
        for item in again:
            item.left, item.charged = item.answers, 0
            (self._pulls if item.is_pull else self._ordered).appendleft(item)
        self._urgent.clear()  # the tables make new urgent frames for a new connection

    def _charge(self, item: Item, cost: int) -> None:
        change, item.charged = cost - item.charged, cost
        self._charged += change
        if item.is_pull:
            self._charged_pulls += change

    def _may_send(self, item: Item) -> bool:
        return not item.cost or not self._charged or self._charged + item.cost <= self.credit

    def _may_pull(self) -> bool:
        cost = self._pulls[0].cost
        return not self._charged or (
            self._charged + cost <= self.credit and self._charged_pulls + cost <= self.credit // 2
        )
