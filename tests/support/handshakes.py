"""Handshakes of mode psk without sockets: the lane's side, and both of the worker's sides."""

from __future__ import annotations

import secrets
from typing import NamedTuple, Protocol

import engine_parts

from reducer.wire.errors import PEER_ERRORS
from reducer.wire.handshake import (
    ANSWER_SIZE,
    CHALLENGE_SIZE,
    NONCE_SIZE,
    LaneHandshake,
    WorkerHandshake,
    extract,
    job_key,
)
from reducer.wire.header import PREFACE_SIZE
from reducer_client.engine import EngineError

PSK_OPENING = PREFACE_SIZE + CHALLENGE_SIZE  # what a worker sends first
MASTER = bytes(range(100, 132))
INCARNATION = bytes(range(16))


class WorkerSide(Protocol):
    opening: bytes

    def prove(self, answer: bytes) -> bytes | None:
        """The proof, or None if the answer is wrong or cut."""


class PythonSide:
    def __init__(self, master: bytes, job: str, lane: int, nonce: bytes) -> None:
        self._handshake = WorkerHandshake(job_key(master, job), job, lane, nonce)
        self.opening = self._handshake.opening

    def prove(self, answer: bytes) -> bytes | None:
        try:
            return self._handshake.proof(answer)
        except PEER_ERRORS:
            return None


class EngineSide:
    def __init__(self, master: bytes, job: str, lane: int, nonce: bytes) -> None:
        self._handshake = engine_parts.Handshake(master, job, lane, nonce)
        self.opening = self._handshake.opening

    def prove(self, answer: bytes) -> bytes | None:
        try:
            return self._handshake.received(answer) or None
        except EngineError:
            return None


SIDES: dict[str, type[PythonSide | EngineSide]] = {
    "python": PythonSide,
    "engine": EngineSide,
}


def lane_side(
    preface: bytes, lane: int = 0, master: bytes = MASTER, nonce: bytes | None = None
) -> LaneHandshake:
    nonce = secrets.token_bytes(NONCE_SIZE) if nonce is None else nonce
    return LaneHandshake(extract(master), preface, lane, INCARNATION, nonce)


def feed(lane: LaneHandshake, data: bytes, step: int = 1 << 16) -> bytes:
    """Feed bytes to the lane as its connection reads them; returns the lane's answer.

    Raises the errors of the lane. Bytes behind the last message are not read.
    """
    answer = b""
    while data and not lane.done:
        room = lane.get_buffer()
        part = data[: min(step, len(room))]
        room[: len(part)] = part
        data = data[len(part) :]
        answer += lane.received(len(part))
    return answer


class Recorded(NamedTuple):
    """All bytes sent in one accepted handshake."""

    opening: bytes
    answer: bytes
    proof: bytes

    @property
    def preface(self) -> bytes:
        return self.opening[:PREFACE_SIZE]

    @property
    def challenge(self) -> bytes:
        return self.opening[PREFACE_SIZE:]


def complete(
    side: type[PythonSide | EngineSide] = PythonSide,
    job: str = "job",
    lane: int = 0,
    master: bytes = MASTER,
) -> Recorded:
    """A handshake of two correct peers."""
    worker = side(master, job, lane, secrets.token_bytes(NONCE_SIZE))
    theirs = lane_side(worker.opening[:PREFACE_SIZE], lane, master)
    answer = feed(theirs, worker.opening[PREFACE_SIZE:])
    assert len(worker.opening) == PREFACE_SIZE + CHALLENGE_SIZE and len(answer) == ANSWER_SIZE
    proof = worker.prove(answer)
    assert proof is not None
    assert feed(theirs, proof) == b""
    assert theirs.done and theirs.job == job
    return Recorded(worker.opening, answer, proof)
