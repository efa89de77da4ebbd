"""Forged, replayed and cut handshakes of mode psk: `python -m tests.fuzz.handshakes --count N`.

The attacker knows the protocol and the names of jobs and lanes, has recorded honest handshakes,
may ask lane and worker for any answer, and is a worker of another job with a key of its own. The
invariant: no forgery is ever accepted, and nothing but the two peer-error families is raised.
Honest handshakes in between show that the gate is not simply shut. Prints the seed.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from reducer.wire.errors import PEER_ERRORS
from reducer.wire.handshake import ANSWER_SIZE, NONCE_SIZE, LaneHandshake, extract, job_key
from reducer.wire.header import PREFACE_SIZE, PrefaceFlag, pack_preface
from tests.support.handshakes import (
    INCARNATION,
    MASTER,
    SIDES,
    EngineSide,
    PythonSide,
    Recorded,
    complete,
    feed,
)

JOB = "victim"
OWN_JOB = "attacker"
LANES = 2
HONEST_EVERY = 100
_RECORDED = 64


class Attacker:
    """Each attack is one connection; it returns whether the other side believed it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.own_key = job_key(MASTER, OWN_JOB)
        self.recorded = [
            complete(rng.choice(list(SIDES.values())), JOB, lane)
            for lane in range(LANES)
            for _ in range(_RECORDED)
        ]
        self.attacks: list[Callable[[], bool]] = [
            self.random_proof,
            self.changed_proof,
            self.changed_challenge,
            self.cut_session,
            self.replayed_session,
            self.proof_by_own_key,
            self.reflected_mac,
            self.random_bytes,
            self.random_answer,
            self.replayed_answer,
            self.changed_answer,
            self.answer_by_own_key,
            self.answer_of_another_lane,
        ]

    # --- against a lane -----------------------------------------------------------------------

    def _lane(self, number: int) -> LaneHandshake:
        preface = pack_preface(number, PrefaceFlag.PSK)
        nonce = self.rng.randbytes(NONCE_SIZE)
        return LaneHandshake(_EXTRACTED, preface, number, INCARNATION, nonce)

    def _challenge(self, number: int) -> tuple[LaneHandshake, bytes, bytes]:
        """A lane that has answered, the challenge, the answer."""
        lane = self._lane(number)
        challenge = PythonSide(MASTER, JOB, number, self.rng.randbytes(NONCE_SIZE)).opening
        challenge = challenge[PREFACE_SIZE:]
        return lane, challenge, feed(lane, challenge)

    def _passes(self, lane: LaneHandshake, data: bytes) -> bool:
        with suppress(*PEER_ERRORS):
            feed(lane, data, self.rng.choice((1, 7, 1 << 16)))
        return lane.done

    def _worker_mac(self, key: bytes, number: int, challenge: bytes, answer: bytes) -> bytes:
        head = b"ORSW" + bytes(4)
        preface = pack_preface(number, PrefaceFlag.PSK)
        label = b"open-reduction-server worker\0"
        return head + hmac.digest(key, label + preface + challenge + answer + head, hashlib.sha256)

    def random_proof(self) -> bool:
        lane, _, _ = self._challenge(self.rng.randrange(LANES))
        return self._passes(lane, b"ORSW" + bytes(4) + self.rng.randbytes(32))

    def changed_proof(self) -> bool:
        number = self.rng.randrange(LANES)
        lane, challenge, answer = self._challenge(number)
        proof = self._worker_mac(job_key(MASTER, JOB), number, challenge, answer)
        return self._passes(lane, self._changed(proof))

    def changed_challenge(self) -> bool:
        """A man in the middle changes what an honest worker says first, and passes on the rest."""
        number = self.rng.randrange(LANES)
        worker = PythonSide(MASTER, JOB, number, self.rng.randbytes(NONCE_SIZE))
        opening = self._changed(worker.opening)
        preface = opening[:PREFACE_SIZE]
        nonce = self.rng.randbytes(NONCE_SIZE)
        lane = LaneHandshake(_EXTRACTED, preface, number, INCARNATION, nonce)
        try:
            answer = feed(lane, opening[PREFACE_SIZE:])
        except PEER_ERRORS:
            return False
        proof = worker.prove(answer)
        return proof is not None and self._passes(lane, proof)

    def cut_session(self) -> bool:
        number = self.rng.randrange(LANES)
        lane, challenge, answer = self._challenge(number)
        proof = self._worker_mac(job_key(MASTER, JOB), number, challenge, answer)
        return self._passes(lane, proof[: self.rng.randrange(len(proof))])

    def replayed_session(self) -> bool:
        recorded = self._any()
        lane = self._lane(self.rng.randrange(LANES))
        return self._passes(lane, recorded.challenge + recorded.proof)

    def proof_by_own_key(self) -> bool:
        number = self.rng.randrange(LANES)
        lane, challenge, answer = self._challenge(number)
        return self._passes(lane, self._worker_mac(self.own_key, number, challenge, answer))

    def reflected_mac(self) -> bool:
        lane, _, answer = self._challenge(self.rng.randrange(LANES))
        return self._passes(lane, b"ORSW" + bytes(4) + answer[-32:])

    def random_bytes(self) -> bool:
        lane = self._lane(0)
        begin = self.rng.choice((b"", b"ORSC", b"ORSC\x01\0\0\0", self._any().challenge))
        return self._passes(lane, begin + self.rng.randbytes(self.rng.randrange(300)))

    # --- against a worker ---------------------------------------------------------------------

    def _worker(self, number: int) -> PythonSide | EngineSide:
        side = self.rng.choice(list(SIDES.values()))
        return side(MASTER, JOB, number, self.rng.randbytes(NONCE_SIZE))

    def _answer(self, number: int, opening: bytes) -> bytes:
        return feed(self._lane(number), opening[PREFACE_SIZE:])

    def random_answer(self) -> bool:
        answer = b"ORSA" + self.rng.randbytes(ANSWER_SIZE - 4)
        return self._worker(0).prove(answer) is not None

    def replayed_answer(self) -> bool:
        return self._worker(self.rng.randrange(LANES)).prove(self._any().answer) is not None

    def changed_answer(self) -> bool:
        number = self.rng.randrange(LANES)
        worker = self._worker(number)
        return worker.prove(self._changed(self._answer(number, worker.opening))) is not None

    def answer_by_own_key(self) -> bool:
        worker = self._worker(0)
        head = self._any().answer[:56]
        label = b"open-reduction-server lane\0"
        mac = hmac.digest(self.own_key, label + worker.opening + head, hashlib.sha256)
        return worker.prove(head + mac) is not None

    def answer_of_another_lane(self) -> bool:
        worker = self._worker(0)
        return worker.prove(self._answer(1, worker.opening)) is not None

    # --- tools --------------------------------------------------------------------------------

    def _any(self) -> Recorded:
        return self.rng.choice(self.recorded)

    def _changed(self, data: bytes) -> bytes:
        """With one to three bits that are other ones, or cut."""
        if self.rng.random() < 0.1:
            return data[: self.rng.randrange(len(data))]
        changed = bytearray(data)
        for bit in self.rng.sample(range(8 * len(data)), self.rng.randint(1, 3)):
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)


_EXTRACTED = extract(MASTER)


def run(count: int, seed: int) -> Counter[str]:
    """So many attacks, and the number of each kind; AssertionError for one that came through."""
    rng = random.Random(seed)
    attacker = Attacker(rng)
    made: Counter[str] = Counter()
    for number in range(count):
        attack = rng.choice(attacker.attacks)
        accepted = attack()
        assert not accepted, f"seed {seed}, attack {number}: {attack.__name__} was accepted"
        made[attack.__name__] += 1
        if number % HONEST_EVERY == 0:
            complete(rng.choice(list(SIDES.values())), JOB, rng.randrange(LANES))
            made["honest"] += 1
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"forging {arguments.count:,} handshakes from seed {arguments.seed}", flush=True)
    start = time.monotonic()
    made = run(arguments.count, arguments.seed)
    for name, times in sorted(made.items()):
        print(f"  {name}: {times:,} {'accepted' if name == 'honest' else 'refused'}")
    print(f"0 of {arguments.count:,} forgeries accepted in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
