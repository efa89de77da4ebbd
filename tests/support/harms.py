"""Damages that a proxy does to the bytes of a stream (tests/support/proxy.py)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Literal

from reducer.wire.codes import MessageKind
from tests.support.proxy import Direction, Harm, LinkResetError, Stream, StreamEndError, pass_on

When = Literal["before", "after"]
_KIND_AT = 5
# Frames that may come twice without any effect. All other kinds begin or end a connection. TCP
# repeats no bytes, so only a peer that breaks the protocol sends a second one of those.
REPEATABLE = frozenset(MessageKind) - {
    MessageKind.HELLO, MessageKind.WELCOME, MessageKind.PENDING, MessageKind.ERROR,
    MessageKind.BYE, MessageKind.GOAWAY,
}  # fmt: skip


def cut(at: int) -> Harm:
    """Send RST after the first `at` bytes of a piece."""

    async def harm(stream: Stream, piece: bytes) -> None:
        if at:
            await stream.send(piece[:at])
        raise LinkResetError

    return harm


def end(at: int) -> Harm:
    """Send FIN after the first `at` bytes of a piece; the other direction stays open."""

    async def harm(stream: Stream, piece: bytes) -> None:
        if at:
            await stream.send(piece[:at])
        raise StreamEndError

    return harm


def flip(bit: int) -> Harm:
    """Flip one bit of a piece."""

    async def harm(stream: Stream, piece: bytes) -> None:
        changed = bytearray(piece)
        changed[bit // 8] ^= 1 << bit % 8
        await stream.send(bytes(changed))

    return harm


def delay(seconds: float) -> Harm:
    async def harm(stream: Stream, piece: bytes) -> None:
        await asyncio.sleep(seconds)
        await stream.send(piece)

    return harm


async def repeat(stream: Stream, piece: bytes) -> None:
    """Send the piece twice."""
    await stream.send(piece)
    await stream.send(piece)


async def bytewise(stream: Stream, piece: bytes) -> None:
    """Send every byte separately."""
    for at in range(len(piece)):
        await stream.send(piece[at : at + 1])
        await asyncio.sleep(0)


def kill(strike: Callable[[], None], when: When, is_end: bool) -> Harm:
    """Kill a process before or after a piece is forwarded.

    ``is_end``: the piece is from or for that process, so it is lost with a kill before.
    """

    async def harm(stream: Stream, piece: bytes) -> None:
        if when == "after":
            await stream.send(piece)
        strike()
        if when == "before":
            if is_end:
                raise LinkResetError
            await stream.send(piece)

    return harm


def kind_of(piece: bytes) -> MessageKind | None:
    """The kind of a frame, None for a preface."""
    return MessageKind(piece[_KIND_AT]) if piece[:4] == b"ORSF" else None


class Trigger:
    """A plan that harms the next frame of a kind, once for each `arm`."""

    def __init__(self) -> None:
        self.fired = threading.Event()
        self._armed: tuple[Direction, MessageKind, Harm] | None = None

    def arm(self, direction: Direction, kind: MessageKind, harm: Harm) -> None:
        self.fired.clear()
        self._armed = (direction, kind, harm)

    def __call__(self, stream: Stream) -> Harm:
        return self._watch

    async def _watch(self, stream: Stream, piece: bytes) -> None:
        armed = self._armed
        if armed is None or armed[:2] != (stream.direction, kind_of(piece)):
            await stream.send(piece)
            return
        self._armed = None
        self.fired.set()
        await armed[2](stream, piece)


class Storm:
    """A plan that harms each frame with probability `share`, while `active`; seeded."""

    def __init__(self, seed: int, share: float, kinds: Collection[str] = ()) -> None:
        self.active = False
        self.done: Counter[str] = Counter()
        self.frames = 0
        self._seed = seed
        self._share = share
        self._weights = {k: w for k, w in WEIGHTS.items() if not kinds or k in kinds}

    def __call__(self, stream: Stream) -> Harm:
        name = f"{self._seed} {stream.index} {stream.number} {stream.direction}"
        rng = random.Random(name)

        async def harm(stream: Stream, piece: bytes) -> None:
            self.frames += self.active
            if not self.active or rng.random() >= self._share:
                await stream.send(piece)
                return
            (kind,) = rng.choices([*self._weights], [*self._weights.values()])
            self.done[kind] += 1
            await _make(kind, rng, piece)(stream, piece)

        return harm


# Weights of the harms. A stall is rare, since it takes as long as hundreds of other harms. A stall
# is shorter than the silence after which a reducer is put out for seconds: if the other reducers
# were out, harms to the last one could look like the loss of a worker.
WEIGHTS = {
    "cut": 30.0, "flip": 15.0, "repeat": 30.0, "delay": 15.0, "bytewise": 8.0, "end": 2.0,
    "stall": 0.1,
}  # fmt: skip


def _make(kind: str, rng: random.Random, piece: bytes) -> Harm:
    if kind == "cut":
        return cut(rng.randrange(len(piece)))
    if kind == "end":
        return end(rng.randrange(len(piece)))
    if kind == "flip":
        return flip(rng.randrange(8 * len(piece)))
    if kind == "delay":
        return delay(rng.uniform(0, 0.02))
    if kind == "stall":
        return delay(rng.uniform(0.2, 0.8))
    if kind == "bytewise":
        return bytewise if len(piece) < 400 else pass_on
    return repeat if kind_of(piece) in REPEATABLE else pass_on


async def garble(stream: Stream, piece: bytes) -> None:
    """Replace the piece by other bytes of the same length."""
    await stream.send(random.Random(len(piece)).randbytes(len(piece)))


async def swallow(stream: Stream, piece: bytes) -> None:
    """Send neither bytes nor an end: the other side waits for ever."""


class Switch:
    """A plan that does one harm to the bytes from the reducers, from `set` on."""

    def __init__(self) -> None:
        self.done = 0
        self._harm: Harm = pass_on
        self._concerns: Callable[[Stream], bool] = lambda stream: True
        self._left = 0

    def set(
        self, harm: Harm, concerns: Callable[[Stream], bool] = lambda stream: True, *,
        times: int = 1 << 60,
    ) -> None:  # fmt: skip
        """Do the harm to the matching streams, `times` times."""
        self._harm, self._concerns, self._left = harm, concerns, times

    def __call__(self, stream: Stream) -> Harm:
        return self._pass if stream.direction == "down" else pass_on

    async def _pass(self, stream: Stream, piece: bytes) -> None:
        if not self._left or not self._concerns(stream):
            await stream.send(piece)
            return
        self._left -= 1
        self.done += 1
        await self._harm(stream, piece)
