"""The frames for a lane: their order, the credit, and what is sent again."""

from __future__ import annotations

from reducer.wire.codes import Flag, MessageKind, Outcome
from reducer.wire.header import Header
from reducer_client.tables.outgoing import Item, Outgoing

NET, OTHER = 7, 8
BYTES = 100


def push(seq: int, table: int = NET, shard: int = 0) -> Item:
    header = Header(kind=MessageKind.PUSH, key=table, chunk=shard, round=seq)
    return Item(header, answers=1, cost=BYTES, table=table)


def values(root: int) -> Item:
    header = Header(kind=MessageKind.PUSH, key=NET, flags=int(Flag.VALUES), root=root)
    return Item(header, answers=1, cost=BYTES, table=NET)


def pull(number: int, table: int = NET, arrays: int = 1, shard: int = 0) -> Item:
    header = Header(kind=MessageKind.PULL, key=table, chunk=shard, round=number)
    return Item(header, answers=arrays, cost=arrays * BYTES, table=table)


def call(number: int, answers: int = 1) -> Item:
    return Item(Header(kind=MessageKind.TABLE, key=number), answers=answers, table=NET)


def receipt(item: Item, outcome: int = Outcome.APPLIED) -> Header:
    head = item.header
    return Header(
        kind=MessageKind.RECEIPT, key=head.key, chunk=head.chunk, round=head.round, flags=outcome
    )


def outgoing(credit: int, *items: Item) -> Outgoing:
    made = Outgoing()
    made.credit = credit
    made.put(items)
    return made


def drain(out: Outgoing) -> list[Item]:
    taken = []
    while (item := out.take()) is not None:
        taken.append(item)
    return taken


def test_frames_leave_in_order_within_the_credit() -> None:
    items = [push(seq) for seq in range(1, 5)]
    out = outgoing(2 * BYTES, *items)
    assert drain(out) == items[:2]
    assert out.receipted(receipt(items[0])) is items[0]
    assert drain(out) == items[2:3]


def test_one_frame_is_always_allowed() -> None:
    items = [push(1), push(2)]
    out = outgoing(BYTES // 2, *items)
    assert drain(out) == items[:1]


def test_urgent_frames_come_first_and_need_no_credit() -> None:
    items = [push(1), push(2)]
    out = outgoing(BYTES, *items)
    drain(out)
    urgent = call(9, answers=0)
    out.put([urgent], urgent=True)
    assert drain(out) == [urgent]


def test_a_pull_waits_for_the_pushes_before_it() -> None:
    items = [push(1), push(2), pull(3)]
    out = outgoing(BYTES, *items)
    assert drain(out) == items[:1]
    out.receipted(receipt(items[0]))
    assert drain(out) == items[1:2]
    out.receipted(receipt(items[1]))
    assert drain(out) == items[2:]


def test_a_pull_does_not_wait_for_pushes_of_other_shards() -> None:
    pushes = [push(1, shard=shard) for shard in range(4)]
    pulls = [pull(2, shard=shard) for shard in range(4)]
    out = outgoing(4 * BYTES, *pushes, *pulls)
    assert drain(out) == [pushes[0], pulls[0], pushes[1], pulls[1]]
    out.receipted(receipt(pushes[0]))
    assert drain(out) == [pushes[2]]  # the pulls have half of the credit
    out.answered(pulls[0].key)
    assert drain(out) == [pulls[2]]


def test_a_pull_waits_for_the_calls_before_it() -> None:
    items = [push(1, shard=1), push(1, shard=2), call(9, answers=0), pull(2)]
    out = outgoing(BYTES, *items)
    assert drain(out) == items[:1]
    out.receipted(receipt(items[0]))
    assert drain(out) == items[1:3]
    out.receipted(receipt(items[1]))
    assert drain(out) == items[3:]


def test_pulls_take_at_most_half_of_the_credit_and_pushes_overtake_them() -> None:
    pulls, later = [pull(1), pull(2), pull(3)], push(1, OTHER)
    out = outgoing(4 * BYTES, *pulls, later)
    assert drain(out) == [pulls[0], pulls[1], later]
    assert out.answered(pulls[0].key) is pulls[0]
    assert drain(out) == pulls[2:]


def test_what_has_no_answer_is_sent_again_before_the_rest() -> None:
    items = [push(1), push(2), pull(3), push(4), pull(5)]
    out = outgoing(4 * BYTES, *items)
    assert drain(out) == items[:4]
    out.receipted(receipt(items[0]))
    out.reopened()
    assert drain(out) == items[1:]


def test_a_pull_of_several_arrays_begins_anew() -> None:
    item = pull(1, arrays=3)
    out = outgoing(8 * BYTES, item)
    drain(out)
    out.answered(item.key)
    out.reopened()
    assert drain(out) == [item]
    for _ in range(2):
        assert out.answered(item.key) is item
    assert out
    out.answered(item.key)
    assert not out


def test_urgent_frames_are_forgotten_with_the_connection() -> None:
    out = outgoing(BYTES)
    out.put([call(1, answers=0)], urgent=True)
    out.reopened()
    assert out.take() is None


def test_calls_are_sent_again_until_their_answer() -> None:
    item = call(5)
    out = outgoing(0, item)
    assert drain(out) == [item]
    out.reopened()
    assert drain(out) == [item]
    assert out.answered(item.key) is item
    out.reopened()
    assert drain(out) == []


def test_held_gives_the_credit_back_and_the_frame_stays() -> None:
    items = [push(1), push(1, shard=1)]
    out = outgoing(BYTES, *items)
    assert drain(out) == items[:1]
    assert out.receipted(receipt(items[0], Outcome.HELD)) is None
    assert drain(out) == items[1:]
    out.reopened()
    assert drain(out) == items[:1]  # its bytes count again
    assert out.receipted(receipt(items[0])) is items[0]


def test_receipts_of_first_values_come_in_the_order_of_the_arrays() -> None:
    items = [values(1), values(2), values(0)]
    out = outgoing(3 * BYTES, *items)
    drain(out)
    assert [out.receipted(receipt(items[0])) for _ in range(4)] == [*items, None]


def test_frames_that_nobody_waits_for_keep_their_credit_until_the_answer() -> None:
    mine, others = [push(1), push(2), pull(3)], [push(1, OTHER), push(2, OTHER)]
    out = outgoing(2 * BYTES, mine[0], others[0], mine[1], others[1], mine[2])
    assert drain(out) == [mine[0], others[0]]
    out.give_up(NET)
    assert drain(out) == []
    assert out.find(mine[0].key) is None
    assert out.receipted(receipt(mine[0])) is None
    assert drain(out) == [others[1]]
    out.reopened()
    assert drain(out) == others


def test_one_pull_can_be_given_up_alone() -> None:
    items = [pull(1), pull(2)]
    out = outgoing(8 * BYTES, *items)
    out.give_up(NET, 1)
    assert drain(out) == [items[1]]
