"""The frames that wait for one connection's transport, handed out in parts."""

from __future__ import annotations

from typing import Final

Piece = bytes | memoryview

# Pieces whose average size is below this are joined into one: each piece that the transport keeps
# takes some hundred bytes, and time when the connection ends.
_COPIED_BYTES: Final = 1_024
# How many new pieces are collected before they are joined.
JOINED_PIECES: Final = 128
# The most that a transport gets at once: a chunk of 1 MiB with some headers. Fewer bytes wait until
# the loop has read everything that has come, and are sent together. In mode tls, 1 MiB is encrypted
# in 0.3 to 0.7 ms. libuv writes the bytes that the kernel does not take without a turn of the job,
# and frees them in one step when the connection ends.
BYTES_AT_ONCE: Final = (1 << 20) + 4_096
PIECES_AT_ONCE: Final = 256


class Outbox:
    """Pieces of frames in the order of sending; ``size`` is their bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []
        self._joined = 0  # pieces at the front that stay as they are
        self._joined_size = 0

    def add(self, pieces: list[Piece], size: int) -> None:
        """Queue pieces of `size` bytes in all; they must stay unchanged until they are sent."""
        self._pieces += pieces
        self.size += size
        if len(self._pieces) - self._joined >= JOINED_PIECES:
            self._join()

    def take(self) -> list[Piece]:
        """Remove and return the next pieces, BYTES_AT_ONCE and PIECES_AT_ONCE at most.

        If this raises, nothing more may be sent.
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
        """Drop all frames. This allocates no memory."""
        self._pieces.clear()
        self.size = self._joined = self._joined_size = 0

    def _join(self) -> None:
        """Join the new pieces into one if they are small."""
        last, size = self._pieces[self._joined :], self.size - self._joined_size
        if len(last) > 1 and size < _COPIED_BYTES * len(last):
            self._pieces[self._joined :] = [b"".join(last)]
        self._joined, self._joined_size = len(self._pieces), self.size


def _cut(pieces: list[Piece]) -> list[Piece]:
    """Cut `pieces` to what may be taken at once. Returns the pieces after that."""
    place, room = 0, BYTES_AT_ONCE
    while place < min(len(pieces), PIECES_AT_ONCE) and len(pieces[place]) <= room:
        room -= len(pieces[place])
        place += 1
    behind = pieces[place:]
    del pieces[place:]
    # A piece is cut only if little would be sent without its beginning: its rest is another write.
    if behind and place < PIECES_AT_ONCE and room > BYTES_AT_ONCE // 2:
        first = memoryview(behind[0])
        pieces.append(first[:room])
        behind[0] = first[room:]
    return behind
