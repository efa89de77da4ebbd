"""The psk handshake (PROTOCOL.md, section 12): two peers prove that they have a job's key.

Law: before the proof, a lane parses only fixed fields of messages of fixed size, and reads no byte
that it did not ask for. The caller passes the random nonce. One object serves one attempt on one
connection.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

from reducer.wire.codes import MAX_JOB_BYTES, PROTOCOL_MAJOR
from reducer.wire.errors import AuthenticationError, BadFrameError
from reducer.wire.header import PREFACE_SIZE, PrefaceFlag, pack_preface

NONCE_SIZE: Final = 32
MAC_SIZE: Final = 32
INCARNATION_SIZE: Final = 16
# A peer that has one answer of a lane can try keys offline: below 128 bits that is feasible.
MIN_KEY_BYTES: Final = 16
MAX_KEY_BYTES: Final = 1_024
JOB_KEY_BYTES: Final = 32

CHALLENGE_MAGIC: Final = b"ORSC"
ANSWER_MAGIC: Final = b"ORSA"
PROOF_MAGIC: Final = b"ORSW"
_CHALLENGE: Final = struct.Struct(f"<4sB3s{MAX_JOB_BYTES}s{NONCE_SIZE}s")
_ANSWER: Final = struct.Struct(f"<4sHH{INCARNATION_SIZE}s{NONCE_SIZE}s")
_PROOF: Final = struct.Struct("<4s4s")
CHALLENGE_SIZE: Final = _CHALLENGE.size
ANSWER_SIZE: Final = _ANSWER.size + MAC_SIZE
PROOF_SIZE: Final = _PROOF.size + MAC_SIZE
# Bytes that a lane receives before the worker is authenticated, including the preface.
RECEIVED_BYTES: Final = PREFACE_SIZE + CHALLENGE_SIZE + PROOF_SIZE

_SALT: Final = b"open-reduction-server psk %d" % PROTOCOL_MAJOR
_LANE: Final = b"open-reduction-server lane\0"
_WORKER: Final = b"open-reduction-server worker\0"


def extract(master: bytes) -> bytes:
    """HKDF-Extract (RFC 5869) of the key in a key file; ValueError for a key of a bad length."""
    if not MIN_KEY_BYTES <= len(master) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, got {len(master)}")
    return hmac.digest(_SALT, master, hashlib.sha256)


def expand(extracted: bytes, job: str) -> bytes:
    """The key of one job: HKDF-Expand to 32 bytes with the job's name as info."""
    return hmac.digest(extracted, job.encode() + b"\x01", hashlib.sha256)


def job_key(master: bytes, job: str) -> bytes:
    """`extract`, then `expand`."""
    return expand(extract(master), job)


def _mac(key: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, label + transcript, hashlib.sha256)


class LaneHandshake:
    """The lane's side: challenge in, answer out, proof in.

    `get_buffer` has room only for the rest of one message, so the first frame stays in the socket.
    `received` raises the ProtocolError family; after an error the connection must be closed.
    """

    __slots__ = ("_answer", "_extracted", "_have", "_key", "_message", "_transcript", "done", "job")

    def __init__(
        self, extracted: bytes, preface: bytes, lane: int, incarnation: bytes, nonce: bytes
    ) -> None:
        assert len(incarnation) == INCARNATION_SIZE and len(nonce) == NONCE_SIZE
        self.job = ""
        self.done = False
        self._extracted = extracted
        self._transcript = preface
        self._answer = _ANSWER.pack(ANSWER_MAGIC, lane, 0, incarnation, nonce)
        self._key = b""
        self._message = bytearray(CHALLENGE_SIZE)
        self._have = 0

    def get_buffer(self) -> memoryview:
        return memoryview(self._message)[self._have :]

    def received(self, nbytes: int) -> bytes:
        """Account for `nbytes` read; returns the answer to send after the challenge, else b""."""
        self._have += nbytes
        magic = PROOF_MAGIC if self._key else CHALLENGE_MAGIC
        begin = bytes(self._message[: min(self._have, len(magic))])
        if not magic.startswith(begin):
            raise BadFrameError(f"a handshake message begins with {begin!r}, expected {magic!r}")
        if self._have < len(self._message):
            return b""
        message = bytes(self._message)
        if self._key:
            self._check_proof(message)
            return b""
        return self._take_challenge(message)

    def _take_challenge(self, message: bytes) -> bytes:
        self.job = _job_of(message)
        self._key = expand(self._extracted, self.job)
        self._transcript += message + self._answer
        mac = _mac(self._key, _LANE, self._transcript)
        self._transcript += mac
        self._message = bytearray(PROOF_SIZE)
        self._have = 0
        return self._answer + mac

    def _check_proof(self, message: bytes) -> None:
        _, reserved = _PROOF.unpack_from(message)
        if any(reserved):
            raise BadFrameError("reserved bytes are set in a proof")
        expected = _mac(self._key, _WORKER, self._transcript + message[: _PROOF.size])
        self._key = self._extracted = b""
        if not hmac.compare_digest(message[_PROOF.size :], expected):
            raise AuthenticationError(f"the worker could not prove the key of job {self.job!r}")
        self.done = True


class WorkerHandshake:
    """The worker's side in Python, for the registry's clients and for tests: `opening` out, answer
    in, proof out. Groups have the engine's.
    """

    def __init__(self, key: bytes, job: str, lane: int, nonce: bytes) -> None:
        name = job.encode()
        challenge = _CHALLENGE.pack(CHALLENGE_MAGIC, len(name), bytes(3), name, nonce)
        self.opening = pack_preface(lane, PrefaceFlag.PSK) + challenge
        self._key = key
        self._lane = lane

    def proof(self, answer: bytes) -> bytes:
        """The proof to send to the lane; AuthenticationError unless `answer` proves the key."""
        if len(answer) != ANSWER_SIZE or not answer.startswith(ANSWER_MAGIC):
            raise BadFrameError(
                f"the answer to the challenge has {len(answer)} bytes and begins with "
                f"{answer[:16]!r}, expected {ANSWER_SIZE} bytes that begin with {ANSWER_MAGIC!r}"
            )
        _, lane, reserved, _, _ = _ANSWER.unpack_from(answer)
        expected = _mac(self._key, _LANE, self.opening + answer[: _ANSWER.size])
        if not hmac.compare_digest(answer[_ANSWER.size :], expected):
            raise AuthenticationError("the lane could not prove that it has the key of this job")
        if lane != self._lane or reserved:
            raise BadFrameError(f"lane {lane} has answered, expected lane {self._lane}")
        head = _PROOF.pack(PROOF_MAGIC, bytes(4))
        return head + _mac(self._key, _WORKER, self.opening + answer + head)


def _job_of(challenge: bytes) -> str:
    """The job's name in a challenge; BadFrameError if a field of the challenge is invalid."""
    _, size, reserved, name, _ = _CHALLENGE.unpack(challenge)
    if any(reserved) or not 1 <= size <= MAX_JOB_BYTES or any(name[size:]):
        raise BadFrameError(
            f"a challenge has reserved bytes that are set, or a job name of {size} bytes, expected "
            f"1 to {MAX_JOB_BYTES} and zeros behind it"
        )
    try:
        return str(name[:size], "utf-8")
    except UnicodeDecodeError:
        raise BadFrameError("the job name in a challenge is no UTF-8") from None
