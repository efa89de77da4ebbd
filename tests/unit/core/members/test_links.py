"""What a lane's core knows of its connections to other lanes."""

from __future__ import annotations

from reducer.core.members.session import SessionState
from reducer.core.surface import events
from reducer.server.data.executor import failure_of
from tests.support.simlane import SimLane


def test_a_dial_that_succeeds_is_a_session() -> None:
    lane = SimLane()
    dial = lane.core._links.dial("127.0.0.1:4000", 3, "job")
    outputs = lane.core.handle(events.Dialed(dial.link, 70), 0.0)
    peer = lane.core._roster.sessions[70]
    assert (peer.link, peer.state) == (dial.link, SessionState.LINKED)
    (line,) = outputs
    assert isinstance(line, events.Log) and "lane 3 of 127.0.0.1:4000" in line.text
    lane.core.handle(events.Disconnected(70, "the test"), 0.0)
    assert 70 not in lane.core._roster.sessions


def test_a_dial_that_nobody_waits_for_is_closed() -> None:
    lane = SimLane()
    dial = lane.core._links.dial("127.0.0.1:4000", 3, "job")
    lane.core.handle(events.DialFailed(dial.link, "127.0.0.1:4000, lane 3: refused"), 0.0)
    (close,) = lane.core.handle(events.Dialed(dial.link, 70), 0.0)
    assert isinstance(close, events.Close) and close.session == 70
    assert lane.core._roster.sessions[70].state == SessionState.CLOSED


def test_a_dial_that_the_shell_cannot_begin_has_failed() -> None:
    dial = SimLane().core._links.dial("127.0.0.1:4000", 3, "job")
    failed = failure_of(dial, MemoryError("injected"))
    assert failed == events.DialFailed(dial.link, "127.0.0.1:4000: MemoryError: injected")
