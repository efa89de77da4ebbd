"""The sessions of a run's ranks, and frames to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reducer.core.rounds.round import Round, StreamRounds
from reducer.core.rounds.view import View
from reducer.core.surface.control_frames import control_frame, payload_frame
from reducer.core.surface.events import Behind, Output, Send
from reducer.wire import messages
from reducer.wire.codes import MessageKind
from reducer.wire.header import Buffer, Crc


class Seats:
    """`sessions[rank]`: the rank's session, None while it has none; `Members` sets it.

    `departed` is the first rank that said BYE. `view`: the members; no other rank has a session.
    """

    def __init__(self, run: int, view: View, crc: Crc) -> None:
        self.run = run
        self.sessions: list[int | None] = [None] * view.world_size
        self.view = view
        self.departed: int | None = None
        self._crc = crc

    @property
    def epoch(self) -> int:
        return self.view.epoch

    @property
    def present(self) -> list[int]:
        return [session for session in self.sessions if session is not None]

    def to_all(self, message: messages.Message) -> Send:
        return Send(self.run, self.present, self._frame(message), None, 0)

    def forward(self, rank: int, kind: MessageKind, payload: Buffer) -> Send:
        """What a rank sent, to all other ranks."""
        own = self.sessions[rank]
        frame = payload_frame(kind, payload, self._crc, epoch=self.epoch)
        return Send(self.run, [s for s in self.present if s != own], frame, None, 0)

    def to_rank(self, rank: int, message: messages.Message) -> Send:
        return Send(self.run, self.of((rank,)), self._frame(message), None, 0)

    def about(self, round_: Round, ranks: Iterable[int], message: messages.Message) -> Send:
        """A message about one round."""
        stream = round_.stream
        frame = self._frame(
            message, chunk=stream.home, route=stream.since, key=round_.key.id, round=round_.number
        )
        return Send(self.run, self.of(ranks), frame, None, 0)

    def heartbeat(self, stream: StreamRounds, payload: bytes, sessions: Sequence[int]) -> Send:
        """Stable positions of some of the stream's keys."""
        place = {"chunk": stream.home, "route": stream.since}
        frame = payload_frame(MessageKind.HEARTBEAT, payload, self._crc, epoch=self.epoch, **place)
        return Send(self.run, sessions, frame, None, 0)

    def empty_heartbeat(self) -> Send:
        frame = payload_frame(MessageKind.HEARTBEAT, b"", self._crc)
        return Send(self.run, self.present, frame, None, 0)

    def ask_for_turns(self, out: list[Output]) -> None:
        """Ask for turns of the run, in the name of any connected session."""
        for session in self.sessions:
            if session is not None:
                out.append(Behind(self.run, session))
                return

    def of(self, ranks: Iterable[int]) -> list[int]:
        """The sessions of those ranks that are connected."""
        sessions = [self.sessions[rank] for rank in ranks]
        return [session for session in sessions if session is not None]

    def _frame(self, message: messages.Message, **fields: int) -> bytes:
        return control_frame(message, self._crc, epoch=self.epoch, **fields)
