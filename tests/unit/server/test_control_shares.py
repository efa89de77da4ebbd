"""The share of a job in the control frames of a lane, without sockets."""

from __future__ import annotations

from reducer.server.control_shares import SECONDS_PER_TICK, ControlShares


class Line:
    """A connection that can be left unread."""

    held = False

    def hold(self) -> None:
        self.held = True

    def let_go(self) -> None:
        self.held = False


def test_a_job_that_connects_anew_has_what_it_took_before() -> None:
    shares, first, second, other = ControlShares(), Line(), Line(), Line()
    shares.enter(first, "busy")
    shares.enter(other, "calm")
    shares.spend(first, 3 * SECONDS_PER_TICK)
    shares.leave(first)
    shares.enter(second, "busy")
    assert second.held and not other.held
    for _ in range(4):
        shares.tick()
    assert not second.held


def test_a_job_that_has_gone_is_forgotten() -> None:
    shares, line = ControlShares(), Line()
    shares.enter(line, "busy")
    shares.spend(line, 3 * SECONDS_PER_TICK)
    shares.leave(line)
    for _ in range(4):
        shares.tick()
    assert not vars(shares)["_by_job"] and not vars(shares)["_of"]
