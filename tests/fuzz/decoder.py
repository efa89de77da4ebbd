"""Fuzz the decoder, the lane behind it and the engine: `python -m tests.fuzz.decoder`.

The invariant: arbitrary bytes are parsed, or refused with the two peer-error families, never
anything else; nothing is held for a session that has ended; and other sessions are unharmed.
Prints the seed of every failure; `--seed` replays it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

from reducer.wire.codes import ErrorCode, MessageKind
from reducer.wire.decoder import Decoder
from reducer.wire.errors import PEER_ERRORS
from reducer.wire.header import HEADER_SIZE, Header, pack_header
from tests.support.checksum import crc32c
from tests.support.frames import frame
from tests.support.scripted import Scripted, Spec, join_all
from tests.support.simlane import SimLane
from tests.vectors import regenerate

FRAMES = list(regenerate.frames().values())


def mutated(rng: random.Random) -> bytes:
    """A stream of good frames with some faults in it."""
    stream = bytearray()
    for _ in range(rng.randrange(1, 6)):
        stream += rng.choice((good_frame, resealed_frame, garbage))(rng)
    for _ in range(rng.choice((0, 0, 1, 3))):
        fault = rng.choice((flip, cut, double))
        stream = fault(rng, stream)
    return bytes(stream)


def good_frame(rng: random.Random) -> bytes:
    return rng.choice(FRAMES)


def resealed_frame(rng: random.Random) -> bytes:
    """Random fields under right CRCs: they reach the code behind the checks."""
    payload = rng.randbytes(rng.choice((0, 0, 4, 16, 32, 100)))
    if rng.random() < 0.3:
        payload = rng.choice(FRAMES)[HEADER_SIZE:]

    def small(limit: int) -> int:
        return rng.choice((0, 1, 2, rng.randrange(limit), limit - 1))

    header = Header(
        kind=rng.choice([*map(int, MessageKind), small(256)]), dtype=small(19), op=small(8),
        collective=small(7), flags=small(16), rank=small(1 << 16), root=small(1 << 16),
        epoch=small(1 << 32), chunk=small(1 << 32), key=small(1 << 64), round=small(1 << 64),
        count=small(1 << 64), done=small(1 << 64), stable=small(1 << 64), route=small(1 << 32),
    )  # fmt: skip
    if rng.random() < 0.9:
        return frame(header, payload)
    return pack_header(header.replace(length=small(1 << 32)), crc32c) + payload


def garbage(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200))


def flip(rng: random.Random, data: bytearray) -> bytearray:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def cut(rng: random.Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def double(rng: random.Random, data: bytearray) -> bytearray:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[max(0, at - 40) :]


def fuzz_decoder(rng: random.Random) -> None:
    decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE)))
    stream = mutated(rng)
    try:
        while stream:
            step = rng.choice((1, 3, 80, 1_000))
            decoder.feed(stream[:step])
            stream = stream[step:]
    except PEER_ERRORS:
        pass


class LaneFuzzer:
    """A lane with a healthy job on it, under fire from hostile members and strangers."""

    def __init__(self) -> None:
        self.lane = SimLane(silence=1e9)
        self.healthy = join_all(self.lane, 2, job="healthy")
        self.number = 0

    def __call__(self, rng: random.Random) -> None:
        hostile = [self.lane.connect()]
        if rng.random() < 0.8:
            run = f"run-{self.number}-{rng.random()}"
            members = [
                Scripted(self.lane, rank, 2, job="hostile", run_id=run if rank == 0 else "")
                for rank in range(2)
            ]
            hostile += [member.session for member in members]
        for _ in range(rng.randrange(1, 6)):
            rng.choice(hostile).send(mutated(rng))
        for session in hostile:
            session.disconnect()
        self.lane.tick(5.1)  # then nobody comes back
        self.check()

    def check(self) -> None:
        snapshot = self.lane.snapshot()
        assert set(snapshot["jobs"]) == {"healthy"}, snapshot
        assert snapshot["sessions"] == 2, snapshot
        spec = Spec(number=self.number)
        self.number += 1
        for worker in self.healthy:
            worker.contribute(spec, data=b"\x00\x00\x80\x3f" * 8)
        for worker in self.healthy:
            assert worker.results() == [b"\x00\x00\x00\x40" * 8]
            worker.report("x", (spec.number + 1) << 24)
            worker.frames.clear()
        self.lane.tick(0.3)
        assert not self.lane.held
        self.lane.sessions = {worker.session.number: worker.session for worker in self.healthy}


def fuzz_engine(rng: random.Random) -> None:
    import engine_parts

    state = engine_parts.State(
        reducers=1, job="job", run_id="run", rank=0, world_size=1, chunk_table=[(0, 4_096)],
        connect_timeout=30.0, silence=30.0,
    )  # fmt: skip
    for reducer, lane in state.wanted():
        state.opened(reducer, lane, 0.0)
    state.outgoing(0, 0, 1 << 20, 0.0)
    stream = mutated(rng)
    if rng.random() < 0.7:
        stream = regenerate.frames()["pending"] + regenerate.frames()["welcome"] + stream
    while stream and state.error is None:
        step = rng.choice((1, 3, 80, 1_000))
        state.incoming(0, 0, stream[:step], 0.0)
        stream = stream[step:]
        state.tick(0.0)
        state.outgoing(0, 0, 1 << 20, 0.0)
    if state.error is not None and "(from " not in state.error[1]:  # else the lane's own word
        assert state.error[0] != ErrorCode.INTERNAL, state.error


def run(seconds: float, seed: int) -> int:
    """Rounds of fuzzing until the time is over; the number of inputs."""
    targets: list[Callable[[random.Random], None]] = [fuzz_decoder, LaneFuzzer()]
    try:
        import engine_parts  # noqa: F401

        targets.append(fuzz_engine)
    except ImportError:
        print("the engine is not built: the decoder and the lane alone are fuzzed")
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        for target in targets:
            try:
                target(random.Random(seed + count))
            except BaseException:
                print(f"failed: seed {seed + count} target {target}", file=sys.stderr)
                raise
        count += 1
    return count * len(targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"fuzzing for {arguments.seconds:g} s from seed {arguments.seed}")
    print(f"{run(arguments.seconds, arguments.seed):,} inputs, none broke the rule")


if __name__ == "__main__":
    main()
