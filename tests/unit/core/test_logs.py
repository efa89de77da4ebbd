"""Log lines of a lane have their subject in fields, too."""

from __future__ import annotations

from reducer.wire import messages
from reducer.wire.codes import DType
from tests.support.frames import control
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane

RUN = {"job": "job", "run": "run"}


def last(lane: SimLane, text: str) -> dict[str, object]:
    """The fields of the last line with the text."""
    return next(a for t, a in reversed([*zip(lane.logs, lane.about, strict=True)]) if text in t)


def test_of_a_run() -> None:
    lane = SimLane()
    ranks = join_all(lane, 2)
    assert last(lane, "rank 1 of job 'job' joins: 2 of 2") == {"job": "job", "rank": 1}
    assert last(lane, "2 workers joined") == RUN
    ranks[1].session.disconnect("reset")
    assert last(lane, "the connection has ended: reset") == {**RUN, "rank": 1}
    Scripted(lane, 1, 2, run_id="run", rejoin=True)
    assert last(lane, "is back on a new connection") == {**RUN, "rank": 1}
    for rank in ranks:
        rank.bye()


def test_of_a_round() -> None:
    lane = SimLane(stall_after=1.0)
    first, second = join_all(lane, 2)
    for rank in (first, second):
        rank.announce("layer")
    first.contribute(Spec(key="layer", number=3), data=bytes(32))
    lane.tick(2.0)
    assert last(lane, "has waited") == {**RUN, "key": "layer", "round": 3}
    odd = Spec(key="layer", number=3, dtype=DType.INT32)
    second.contribute(odd, data=bytes(32))
    assert last(lane, "the ranks disagree") == {**RUN, "key": "layer", "round": 3}


def test_a_route_of_many_slots_is_a_short_line() -> None:
    lane = SimLane()
    (rank,) = join_all(lane, 1, reducers=4_096)

    def route(number: int, dead: range) -> None:
        live = tuple(int(slot not in dead) for slot in range(4_096))
        lanes = (1,) * 4_096
        rank.session.send(control(messages.Route(number, (0,) * 4_096, live, lanes)))

    route(1, range(7, 27, 2))
    named = "7, 9, 11, 13, 15, 17, 19, 21 and 2 more"
    assert lane.logs[-1] == f"job 'job': route 1, 4086 of 4096 slots live, without {named}"
    route(2, range(5, 6))
    assert lane.logs[-1] == "job 'job': route 2, 4095 of 4096 slots live, without 5"
    route(3, range(0))
    assert lane.logs[-1] == "job 'job': route 3, 4096 of 4096 slots live"


def test_of_an_error() -> None:
    lane = SimLane()
    join_all(lane, 2)
    Scripted(lane, 0, 3, run_id="other")
    Scripted(lane, 1, 2, run_id="other")
    assert last(lane, "world size") == {"session": 4, "job": "job", "code": "join"}
    assert lane.snapshot()["errors"]["join"] == 1
