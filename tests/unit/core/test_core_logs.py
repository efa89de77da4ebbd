"""What the lane's lines are about is said in fields, too."""

from __future__ import annotations

from reducer.wire.codes import DType
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
    ranks[1].session.lose("reset")
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


def test_of_an_error() -> None:
    lane = SimLane()
    join_all(lane, 2)
    Scripted(lane, 0, 3, run_id="other")
    Scripted(lane, 1, 2, run_id="other")
    assert last(lane, "world size") == {"session": 4, "job": "job", "code": "join"}
    assert lane.core.snapshot()["errors"]["join"] == 1
