"""The frames that wait for one connection's transport: few pieces, handed out a part at a time."""

from __future__ import annotations

from typing import Final

Piece = bytes | memoryview

# Pieces that are smaller than this, on an average, are copied together: each costs the transport
# that keeps it some hundred bytes, and time at its end.
_COPIED_BYTES: Final = 1_024
# So many that have come since are looked at together.
JOINED_PIECES: Final = 128
# What a transport gets at once; fewer bytes wait until the loop has read all that has come, and go
# together. In mode tls 1 MiB is encrypted in 0.3 to 0.7 ms. What the kernel does not take, libuv
# writes without a turn of the job, and lets go of in one step where the connection ends.
BYTES_AT_ONCE: Final = 1 << 20
PIECES_AT_ONCE: Final = 256


class Outbox:
    """Pieces of frames in the order in which they go out; ``size`` is their bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []
        self._joined = 0  # pieces that stay as they are, and their bytes
        self._joined_size = 0

    def add(self, pieces: list[Piece], size: int) -> None:
        """They must stay unchanged until they are sent."""
        self._pieces += pieces
        self.size += size
        if len(self._pieces) - self._joined >= JOINED_PIECES:
            self._join()

    def take(self) -> list[Piece]:
        """The next ones, BYTES_AT_ONCE and PIECES_AT_ONCE at most; they are no longer here.

        Where this raises, nothing more may be sent.
        """
        self._join()
        taken = self._pieces
        if self.size <= BYTES_AT_ONCE and len(taken) <= PIECES_AT_ONCE:
            self._pieces = []
            self.clear()
            return taken
        self._pieces = _cut(taken)
        self.size -= sum(map(len, taken))
        self._joined, self._joined_size = len(self._pieces), self.size
        return taken

    def clear(self) -> None:
        """Drop all frames. This takes no memory."""
        self._pieces.clear()
        self.size = self._joined = self._joined_size = 0

    def _join(self) -> None:
        """Make one of the last pieces, if they are small."""
        last, size = self._pieces[self._joined :], self.size - self._joined_size
        if len(last) > 1 and size < _COPIED_BYTES * len(last):
            self._pieces[self._joined :] = [b"".join(last)]
        self._joined, self._joined_size = len(self._pieces), self.size


def _cut(pieces: list[Piece]) -> list[Piece]:
    """Leave what may be taken at once; what was behind it."""
    place, room = 0, BYTES_AT_ONCE
    while place < min(len(pieces), PIECES_AT_ONCE) and len(pieces[place]) <= room:
        room -= len(pieces[place])
        place += 1
    behind = pieces[place:]
    del pieces[place:]
    if behind and place < PIECES_AT_ONCE and room:
        first = memoryview(behind[0])
        pieces.append(first[:room])
        behind[0] = first[room:]
    return behind
