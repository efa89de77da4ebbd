"""Mode psk: only peers with the key pass, on both sides and in both languages."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import engine_parts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer.wire import handshake
from reducer.wire.codes import PROTOCOL_MINOR, ErrorCode
from reducer.wire.errors import PEER_ERRORS, AuthenticationError, BadFrameError
from reducer.wire.handshake import CHALLENGE_SIZE, NONCE_SIZE, PROOF_SIZE, RECEIVED_BYTES
from reducer.wire.header import FRAME_MAGIC, PREFACE_SIZE, PrefaceFlag, pack_preface
from reducer_client import _engine
from reducer_client.engine import EngineError
from tests.fuzz import handshakes
from tests.support.handshakes import (
    MASTER,
    SIDES,
    EngineSide,
    PythonSide,
    complete,
    feed,
    lane_side,
)
from tests.vectors import regenerate

PREFACE = pack_preface(0, PrefaceFlag.PSK)
OTHER = bytes(range(32))

both_sides = pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
Side = type[PythonSide] | type[EngineSide]


def flips(data: bytes) -> list[bytes]:
    """Copies with one bit changed: the lowest and the highest bit of each byte."""
    return [
        data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in (0x01, 0x80)
    ]


def new(
    side: Side, job: str = "job", lane: int = 0, master: bytes = MASTER
) -> PythonSide | EngineSide:
    return side(master, job, lane, secrets.token_bytes(NONCE_SIZE))


def refuses(side: Side, opening: bytes, answer: bytes) -> bool:
    """Whether the worker with the nonce in `opening` refuses the answer."""
    worker = side(MASTER, "job", 0, opening[-NONCE_SIZE:])
    assert worker.opening == opening
    return worker.prove(answer) is None


@both_sides
@pytest.mark.parametrize("job", ["j", "job-ü", "n" * 128])
@pytest.mark.parametrize("lane", [0, 515])
def test_two_that_have_the_key(side: Side, job: str, lane: int) -> None:
    sent = complete(side, job, lane)
    assert len(sent.opening) + len(sent.proof) == RECEIVED_BYTES == 224


@pytest.mark.parametrize("name", regenerate.handshakes())
def test_the_engine_says_what_the_vectors_say(name: str) -> None:
    fields = regenerate.handshakes()[name]
    nonce = fields["worker_nonce"]
    engine = engine_parts.Handshake(fields["master"], fields["job"].decode(), fields["lane"], nonce)
    assert engine.opening == fields["opening"]
    assert engine.received(fields["answer"]) == fields["proof"]


def test_the_job_key_is_hkdf() -> None:
    """RFC 5869 by hand: extract, then the first block of expand."""
    extracted = hmac.digest(b"open-reduction-server psk 1", MASTER, "sha256")
    expected = hmac.digest(extracted, b"job\x01", "sha256")
    assert handshake.job_key(MASTER, "job") == expected


@both_sides
def test_byte_by_byte_is_as_good(side: Side) -> None:
    worker = new(side)
    lane = lane_side(PREFACE)
    answer = feed(lane, worker.opening[PREFACE_SIZE:], step=1)
    proof = worker.prove(answer)
    assert proof is not None
    feed(lane, proof, step=1)
    assert lane.done


def test_the_lane_asks_for_no_byte_behind_a_message() -> None:
    worker = new(PythonSide)
    lane = lane_side(PREFACE)
    assert len(lane.get_buffer()) == CHALLENGE_SIZE
    answer = feed(lane, worker.opening[PREFACE_SIZE:])
    assert len(lane.get_buffer()) == PROOF_SIZE
    proof = worker.prove(answer)
    assert proof is not None
    feed(lane, proof[:-1])
    assert len(lane.get_buffer()) == 1


@both_sides
def test_a_changed_challenge_is_refused_by_one_of_the_two(side: Side) -> None:
    refused_at_once = 0
    for changed in flips(new(side).opening):
        worker = new(side)
        opening = changed[:-NONCE_SIZE] + worker.opening[-NONCE_SIZE:]
        if opening == worker.opening:  # the change was in the old nonce: change the new one
            opening = opening[:-1] + bytes([opening[-1] ^ 1])
        lane = lane_side(opening[:PREFACE_SIZE])
        try:
            answer = feed(lane, opening[PREFACE_SIZE:])
        except PEER_ERRORS:
            refused_at_once += 1
            continue
        assert worker.prove(answer) is None
    assert refused_at_once > 200  # magic, length, reserved bytes, padding


@both_sides
def test_a_changed_answer_is_refused(side: Side) -> None:
    worker = new(side)
    answer = feed(lane_side(PREFACE), worker.opening[PREFACE_SIZE:])
    for changed in flips(answer):
        assert refuses(side, worker.opening, changed)
    assert not refuses(side, worker.opening, answer)


@both_sides
def test_a_cut_answer_proves_nothing(side: Side) -> None:
    worker = new(side)
    answer = feed(lane_side(PREFACE), worker.opening[PREFACE_SIZE:])
    for size in range(len(answer)):
        assert refuses(side, worker.opening, answer[:size])


def test_a_changed_or_cut_proof_is_refused() -> None:
    nonces = bytes(32), bytes(range(32))
    worker = PythonSide(MASTER, "job", 0, nonces[0])
    challenge = worker.opening[PREFACE_SIZE:]
    answer = feed(lane_side(PREFACE, nonce=nonces[1]), challenge)
    proof = worker.prove(answer)
    assert proof is not None

    def lane_after(data: bytes) -> bool:
        lane = lane_side(PREFACE, nonce=nonces[1])
        feed(lane, challenge)
        feed(lane, data)
        return lane.done

    for changed in flips(proof):
        with pytest.raises((AuthenticationError, BadFrameError)):
            lane_after(changed)
    assert not any(lane_after(proof[:size]) for size in range(len(proof)))
    assert lane_after(proof)


@both_sides
def test_another_key_or_another_job(side: Side) -> None:
    for theirs in (new(side, master=OTHER), new(side, job="other")):
        mine = side(MASTER, "job", 0, theirs.opening[-NONCE_SIZE:])
        forged = theirs.opening[:PREFACE_SIZE] + mine.opening[PREFACE_SIZE:]
        assert theirs.prove(feed(lane_side(PREFACE), forged[PREFACE_SIZE:])) is None
    answer = feed(lane_side(PREFACE, master=OTHER), new(side).opening[PREFACE_SIZE:])
    assert new(side).prove(answer) is None


@both_sides
def test_a_worker_of_job_a_cannot_prove_job_b(side: Side) -> None:
    challenge = new(side, job="b").opening[PREFACE_SIZE:]
    lane = lane_side(PREFACE)
    answer = feed(lane, challenge)
    key = handshake.job_key(MASTER, "a")
    head = b"ORSW" + bytes(4)
    label = b"open-reduction-server worker\0"
    forged = head + hmac.digest(key, label + PREFACE + challenge + answer + head, hashlib.sha256)
    with pytest.raises(AuthenticationError, match="job 'b'"):
        feed(lane, forged)
    assert not lane.done


@both_sides
def test_what_was_recorded_is_worth_nothing(side: Side) -> None:
    sent = complete(side)
    for number in (0, 1):  # the same lane and another one
        lane = lane_side(pack_preface(number, PrefaceFlag.PSK), number)
        assert feed(lane, sent.challenge) != sent.answer
        with pytest.raises(AuthenticationError):
            feed(lane, sent.proof)
    assert new(side).prove(sent.answer) is None


@both_sides
def test_an_answer_of_another_lane(side: Side) -> None:
    """As a reducer without the key could pass on."""
    worker = new(side)
    answer = feed(lane_side(PREFACE, lane=1), worker.opening[PREFACE_SIZE:])
    assert worker.prove(answer) is None


@both_sides
def test_reflection(side: Side) -> None:
    """A MAC of one direction is not valid in the other, whatever precedes it."""
    worker = new(side)
    lane = lane_side(PREFACE)
    answer = feed(lane, worker.opening[PREFACE_SIZE:])
    with pytest.raises(AuthenticationError):
        feed(lane, b"ORSW" + bytes(4) + answer[-32:])
    proof = worker.prove(answer)
    assert proof is not None
    assert refuses(side, worker.opening, answer[:56] + proof[-32:])


def test_a_lane_takes_one_try_alone() -> None:
    worker = new(PythonSide)
    lane = lane_side(PREFACE)
    answer = feed(lane, worker.opening[PREFACE_SIZE:])
    proof = worker.prove(answer)
    assert proof is not None
    with pytest.raises(AuthenticationError):
        feed(lane, proof[:-1] + bytes([proof[-1] ^ 1]))
    lane._message[:], lane._have = proof, 0  # as if its connection went on
    with pytest.raises(PEER_ERRORS):
        lane.received(PROOF_SIZE)
    assert not lane.done


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        (pack_preface(0), ErrorCode.AUTHENTICATION, "--key-file"),
        (b"ORSP\x09\x02" + bytes(10), ErrorCode.VERSION, f"speaks 1.{PROTOCOL_MINOR}, got 9.2"),
        (FRAME_MAGIC, ErrorCode.AUTHENTICATION, "no proof"),
        (b"HTTP/1.1 400", ErrorCode.AUTHENTICATION, "answers HTTP"),
    ],
)
def test_the_engine_names_what_is_there_instead(sent: bytes, code: ErrorCode, says: str) -> None:
    for step in (1, len(sent)):
        engine = engine_parts.Handshake(MASTER, "job", 0, bytes(32))
        with pytest.raises(EngineError) as caught:
            for at in range(0, len(sent), step):
                engine.received(sent[at : at + step])
        assert caught.value.args[0] == code
        assert says in caught.value.args[1] and "the lane" in caught.value.args[1]


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=4), st.booleans())
def test_arbitrary_bytes_pass_nobody(pieces: list[bytes], begins: bool) -> None:
    lane = lane_side(PREFACE)
    if begins:
        feed(lane, new(PythonSide).opening[PREFACE_SIZE:])
        pieces = [b"ORSW" + bytes(4), *pieces]
    try:
        for piece in pieces:
            feed(lane, piece)
    except PEER_ERRORS:
        pass
    assert not lane.done


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_engines_hashes_are_those_of_the_library(key: bytes, data: bytes) -> None:
    assert engine_parts.sha256(data) == hashlib.sha256(data).digest()
    assert engine_parts.hmac_sha256(key, data) == hmac.digest(key, data, hashlib.sha256)


@pytest.mark.parametrize("size", [1, 15, 1025])
def test_a_key_of_a_bad_size(size: int) -> None:
    with pytest.raises(ValueError, match="16 to"):
        handshake.extract(bytes(size))
    with pytest.raises(ValueError, match="16 to"):
        engine_parts.Handshake(bytes(size), "job", 0, bytes(32))


@pytest.mark.parametrize("size", [1, 31, 33])
def test_the_engine_takes_a_jobs_key_alone(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        _engine.Engine(
            addresses=["127.0.0.1:1"], job="j", run_id="r", rank=0, world_size=1,
            chunk_table=[(0, 4096)], connect_timeout=1.0, silence=1.0, reducer_wait=1.0,
            key=bytes(size),
        )  # fmt: skip


def test_twenty_thousand_forgeries_and_none_is_accepted() -> None:
    """`make soak` runs a million of them."""
    count = 20_000
    made = handshakes.run(count, seed=1)
    assert made.pop("honest") == count // handshakes.HONEST_EVERY
    assert sum(made.values()) == count
    assert len(made) == 13 and min(made.values()) > count / 20
