"""The worker's side of the handshake of mode psk in Python; workers have the engine's."""

from __future__ import annotations

import hmac

from reducer.wire.errors import AuthenticationError, BadFrameError
from reducer.wire.handshake import (
    _ANSWER,
    _CHALLENGE,
    _LANE,
    _PROOF,
    _WORKER,
    ANSWER_MAGIC,
    ANSWER_SIZE,
    CHALLENGE_MAGIC,
    PROOF_MAGIC,
    _mac,
)
from reducer.wire.header import PrefaceFlag, pack_preface


class WorkerHandshake:
    """`opening` out, answer in, proof out."""

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
