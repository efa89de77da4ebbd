"""Write the golden vectors of this minor version, which Python and the C++ engine both check.

Run `python -m tests.vectors.regenerate` after a deliberate change of the protocol, and read the
difference: a changed line means that an old peer will not understand a new one. Each minor has a
folder of its own, MAJOR.MINOR; once it is released, the next change takes the next minor, and what
is in its folder stays as it is: both languages go on reading it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.chunk_plan import make_plan
from reducer.wire import messages as m
from reducer.wire.codes import (
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    Collective,
    DType,
    Flag,
    MessageKind,
    ReduceOp,
)
from reducer.wire.handshake import LaneHandshake, WorkerHandshake, extract, job_key
from reducer.wire.header import (
    HEADER_SIZE,
    PREFACE_SIZE,
    Header,
    PrefaceFlag,
    pack_header,
    pack_preface,
    unpack_header,
)
from reducer.wire.keys import key_id
from reducer.wire.losses import pack_losses
from tests.support.checksum import crc32c
from tests.support.frames import control, frame, heartbeat

FOLDER = Path(__file__).parent
PATH = FOLDER / f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}" / "frames.txt"
INTRO = """\
# Golden vectors of wire protocol 1. One a line: kind of vector, name, key=value ..., hex=bytes.
# preface: lane, flags. frame: all header fields, then header and payload in hex. bad: bytes that
# must be refused, and the family of the error. key: name (hex of its UTF-8) and id. crc: bytes and
# CRC-32C.
# psk: a whole handshake of mode psk; master and nonces in hex, then what is sent, in order.
# plan: inputs, chunks, then chunk:elements:sends:receives:slot:lane for some chunks of rank.
# Written by regenerate.py.
"""
INCARNATION = bytes(range(16))
LOST = pack_losses([(1, 3), (4, 0), (4, 2)])
TABLE: m.ChunkTable = ((0, 65_536), (1 << 20, 131_072), (8 << 20, 524_288), (32 << 20, 1 << 20))


def frames() -> dict[str, bytes]:
    weight = key_id("layer1.weight")
    contribution = Header(
        kind=MessageKind.CONTRIBUTION, dtype=DType.FLOAT32, op=ReduceOp.MEAN,
        collective=Collective.ALL_REDUCE, rank=3, epoch=7, chunk=11, key=weight, round=1 << 33,
        count=123_456_789, done=(5 << 24) + 9, route=2,
    )  # fmt: skip
    result = contribution.replace(
        kind=MessageKind.RESULT, rank=0xFFFF, flags=6, done=0, stable=(5 << 24) + 4
    )
    spoilt = result.replace(rank=2, flags=Flag.NAN | Flag.NONFINITE)
    held = contribution.replace(flags=Flag.HELD | Flag.NAN, stable=4 | 2 << 32)
    broadcast = Header(
        kind=MessageKind.CONTRIBUTION, dtype=DType.UINT8, op=ReduceOp.COPY,
        collective=Collective.BROADCAST, rank=1, root=2, key=key_id("w"), count=10,
    )  # fmt: skip
    bits = contribution.replace(dtype=DType.INT64, op=ReduceOp.BXOR, route=0)
    patient = m.Hello("j", 0, 1, INCARNATION, 0, 1, "run-1", TABLE, worker_silence_ms=60_000)
    hello = m.Hello("job-ü", 3, 4, INCARNATION, 1, 2, "run-1", TABLE, 0, "test")
    welcome = m.Welcome("run-1", 1, 2, 4, 3, INCARNATION, 4, 0, 0, TABLE, 4 << 20, (2 << 20), 250)
    waiting = {"key": "a", "round": 3, "age_ms": 10_250, "absent": [1, 2], "absent_count": 2}
    moved = m.Welcome(
        "run-1", 1, 3, 4, 3, INCARNATION, 4, 0, 9, TABLE, 4 << 20, 2 << 20, 250, 0, 2,
        (0, 9, 4), (1, 0, 1), (4, 4, 1),
    )  # fmt: skip
    record = m.RegistryRecord(
        more=True, incarnation=INCARNATION, boot=INCARNATION[::-1], revision=9, whole=True,
        version=4, value=b"\x00doc", leases=(("rank 2", b"v"), ("ü", b"")), gone=("rank 1",),
    )  # fmt: skip
    stats = m.Stats(1 << 40, 5, 7, 6, 1, 2, 1, 3, 99, ((1, 4), (0, 2)), (waiting,))
    table = m.TableCall(
        "table", name="net", count=1_000, shard=512, partitions=8, partition=3,
        optimizer=b"\x81\xa9optimizer\xa4none", mode="step", bound=4, workers=4, quorum=3,
        late="carry", digest=bytes(range(32)), tensors=b"\x00z", rate=0.5,
    )  # fmt: skip
    push = Header(
        kind=MessageKind.PUSH, dtype=DType.FLOAT32, rank=2, chunk=11, key=key_id("net"),
        round=1 << 33, count=9, done=4,
    )  # fmt: skip
    return {
        "hello": control(hello),
        "hello_least": control(m.Hello("j", 0, 1, INCARNATION, 0, 1)),
        "hello_rejoin": control(m.Hello("j", 1, 2, INCARNATION, 0, 1, "run-1", rejoin=True)),
        "hello_group": control(m.Hello("j", 1, 2, INCARNATION, 0, 1, "run-1#rows/0")),
        "hello_patient": control(patient),
        "hello_elastic": control(replace(hello, elastic=True, rejoin=True, lost=LOST)),
        "pending": control(m.Pending(4, 0, INCARNATION, (1, 3), 2)),
        "welcome": control(welcome),
        "welcome_moved": control(moved),
        "welcome_lost": control(replace(moved, epoch=4, lost=LOST)),
        "welcome_patient": control(replace(welcome, worker_silence_ms=60_000)),
        "error": control(m.Error(6, "rank 2 left", 2, "left", "layer1.weight", 7)),
        "goaway": control(m.Goaway("SIGTERM", 0)),
        "bye": frame(Header(kind=MessageKind.BYE)),
        "key": control(m.Key("layer1.weight"), key=weight),
        "stats_question": frame(Header(kind=MessageKind.STATS)),
        "stats": control(stats),
        "stall": control(m.Stall((waiting,))),
        "refused": control(m.Refused(5, "rank 0 sent ..."), key=weight, round=2),
        "contribution": frame(contribution, bytes(range(64))),
        "contribution_empty": frame(broadcast),
        "contribution_wide": frame(
            contribution.replace(dtype=DType.BFLOAT16, flags=1), b"\x80\x3f\x00\x40"
        ),
        "contribution_bits": frame(bits, bytes(range(64))),
        "contribution_blocks": frame(
            contribution.replace(dtype=DType.E3M0_BLOCKS, flags=1, count=3, chunk=0),
            b"\x00\x00\x00\x40\xf7\x0e",
        ),
        "result_blocks": frame(
            result.replace(dtype=DType.INT8_BLOCKS_TO_BFLOAT16, flags=0, count=2, chunk=0),
            b"\x80\x3f\x00\x40",
        ),
        "contribution_held": frame(held, bytes(range(64))),
        "result_of_origin": frame(result.replace(done=4), bytes(range(63, -1, -1))),
        "result": frame(result, bytes(range(63, -1, -1))),
        "result_nonfinite": frame(spoilt, b"\x00\x00\xc0\x7f"),
        "grant": frame(Header(kind=MessageKind.GRANT, key=weight, round=4)),
        "abandon": control(m.Abandon(5, "rank 0 sent ..."), key=weight, round=4, rank=3, chunk=1),
        "route": control(m.Route(9, (0, 9, 4), (1, 0, 1), (4, 4, 1))),
        "route_lost": control(m.Route(9, (9, 9), (1, 0), (4, 4), LOST)),
        "suspect": control(m.Suspect(2, 1, 4, "nothing came for 1.0 s")),
        "absent": control(m.Absent(((2, "the worker closed the connection"),), (1, 3))),
        "absent_nobody": control(m.Absent()),
        "absent_crowd": control(m.Absent(left=(1, 3), left_count=4_098)),
        "registry_open": control(m.RegistryCall("open", job="job-ü"), key=1),
        "registry_get": control(
            m.RegistryCall("get", name="view", milliseconds=10_000, boot=INCARNATION, revision=7),
            key=2,
        ),
        "registry_cas": control(
            m.RegistryCall("cas", name="view", version=3, value=b"\x00doc", token=INCARNATION),
            key=3,
        ),
        "registry_lease": control(
            m.RegistryCall("lease", name="view", holder="rank 2", value=b"v", milliseconds=5_000),
            key=1 << 40,
        ),
        "record": control(record, key=2),
        "record_refused": control(m.RegistryRecord(code=7, message="no room", done=False), key=3),
        "describe": frame(contribution.replace(kind=MessageKind.DESCRIBE, chunk=0, done=0), b""),
        "table_open": control(
            m.TableCall("open", job="job-ü", run_id="run-1", worker=2, incarnation=INCARNATION),
            key=1,
        ),
        "table": control(table, key=2),
        "table_set": control(
            m.TableCall("set", name="net", step=7, generation=1, members=(0, 2), weights=(1, 2)),
            key=3,
        ),
        "notice_open": control(
            m.Notice("open", lanes=4, lane=1, incarnation=INCARNATION, credit=8 << 20), key=1
        ),
        "notice_refused": control(m.Notice("table", code=5, message="worker 2 ..."), key=2),
        "push": frame(push, bytes(range(64))),
        "push_values": frame(push.replace(flags=Flag.VALUES, root=1, round=0), bytes(range(64))),
        "pull": frame(push.replace(kind=MessageKind.PULL, dtype=0, count=3, done=9)),
        "pull_exact": frame(
            push.replace(kind=MessageKind.PULL, dtype=0, flags=Flag.EXACT, count=0, done=9)
        ),
        "value": frame(push.replace(kind=MessageKind.VALUE, root=1, count=10), bytes(range(64))),
        "receipt": frame(push.replace(kind=MessageKind.RECEIPT, dtype=0, flags=2, done=3)),
        "table_follow": control(
            m.TableCall(
                "follow",
                job="job-ü",
                partition=3,
                partitions=8,
                term=2,
                reducer=INCARNATION,
                incarnation=INCARNATION[::-1],
                filling=True,
                number=1,
            ),
            key=1,
        ),
        "notice_alone": control(
            m.Notice("alone", partition=3, term=2, backup_reducer=INCARNATION), key=0
        ),
        "log": frame(
            push.replace(kind=MessageKind.LOG, flags=3, stable=7, route=2, epoch=1),
            bytes(range(64)) + bytes(24),
        ),
        "log_outcome": frame(
            push.replace(kind=MessageKind.LOG, flags=4, op=2, stable=8, route=2), b""
        ),
        "logged": frame(Header(kind=MessageKind.LOGGED, round=8, route=2)),
        "heartbeat_empty": heartbeat(),
        "heartbeat": heartbeat((weight, (6 << 24) + 1), (1, 0)),
    }


def bad_frames() -> dict[str, tuple[str, bytes]]:
    good = frames()["contribution"]
    bye = frames()["bye"]

    def flip(data: bytes, at: int, bits: int = 1) -> bytes:
        return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]

    def sealed(body: bytes) -> bytes:
        return body[:76] + crc32c(body[:76]).to_bytes(4, "little") + body[80:]

    long = Header(kind=MessageKind.CONTRIBUTION, dtype=1, length=(4 << 20) + 1)
    huge = Header(kind=MessageKind.KEY, length=(1 << 32) - 1)
    return {
        "magic": ("bad_frame", sealed(flip(good, 0))),
        "version": ("version", sealed(flip(good, 4, 3))),
        "reserved": ("bad_frame", sealed(flip(bye, 9))),
        "kind": ("bad_frame", sealed(flip(bye, 5, 0x40))),
        "header_bit": ("corrupted", flip(good, 40)),
        "payload_bit": ("corrupted", flip(good, 100)),
        "chunk_too_long": ("bad_frame", pack_header(long, crc32c)),
        "control_too_long": ("bad_frame", pack_header(huge, crc32c)),
        "bye_with_payload": ("bad_frame", frame(Header(kind=MessageKind.BYE), b"x")),
        "http": ("bad_frame", b"GET / HTTP/1.1\r\n" + b"x" * 80),
    }


def handshakes() -> dict[str, dict[str, Any]]:
    """Inputs of complete handshakes, and what is sent in them."""
    found: dict[str, dict[str, Any]] = {}
    cases = (
        ("least", bytes(range(16)), "j", 0),
        ("usual", bytes(range(255, 223, -1)), "job-ü", 515),
        ("longest", bytes(range(256)) * 4, "n" * 128, 65_535),
    )
    for name, master, job, lane in cases:
        nonces = bytes(range(64, 96)), bytes(range(128, 160))
        worker = WorkerHandshake(job_key(master, job), job, lane, nonces[0])
        preface = pack_preface(lane, PrefaceFlag.PSK)
        theirs = LaneHandshake(extract(master), preface, lane, INCARNATION, nonces[1])
        answer = say(theirs, worker.opening[PREFACE_SIZE:])
        proof = worker.proof(answer)
        assert say(theirs, proof) == b"" and theirs.done
        found[name] = {
            "master": master, "job": job.encode(), "lane": lane, "worker_nonce": nonces[0],
            "lane_nonce": nonces[1], "key": job_key(master, job), "opening": worker.opening,
            "answer": answer, "proof": proof,
        }  # fmt: skip
    return found


def say(lane: LaneHandshake, message: bytes) -> bytes:
    """Give the lane's side a message as its connection would."""
    room = lane.get_buffer()
    room[: len(message)] = message
    return lane.received(len(message))


def plan_lines() -> list[str]:
    lines = []
    cases = [
        (Collective.ALL_REDUCE, DType.FLOAT32, 0, 4, 0, 0, (1,)),
        (Collective.ALL_REDUCE, DType.FLOAT32, 5 * 1024 * 1024 // 4 + 1, 4, 1, 0, (2, 2)),
        (Collective.ALL_REDUCE, DType.BFLOAT16, 32_769, 3, 2, 0, (1, 2, 3)),
        (Collective.BROADCAST, DType.UINT8, 200_001, 3, 1, 2, (1, 1)),
        (Collective.ALL_GATHER, DType.FLOAT64, 9_000, 5, 3, 0, (2,)),
        (Collective.REDUCE_SCATTER, DType.INT64, 70_000, 3, 2, 0, (1, 3)),
        (Collective.BARRIER, DType.UINT8, 0, 8, 7, 0, (1, 1, 1)),
        (Collective.ALL_REDUCE, DType.FLOAT32, 16 << 20, 2, 0, 0, (4, 4, 4)),
        (Collective.ALL_REDUCE, DType.INT8_BLOCKS, 1_000_003, 4, 1, 0, (2, 2)),
        (Collective.REDUCE_SCATTER, DType.E3M0_BLOCKS, 300_001, 3, 2, 0, (1, 3)),
        (Collective.ALL_REDUCE, DType.E3M0_BLOCKS_TO_BFLOAT16, 1_000_003, 4, 1, 0, (2, 2)),
        (Collective.ALL_REDUCE, DType.FLOAT8_E4M3FN_BLOCKS_TO_BFLOAT16, 255, 2, 0, 0, (1,)),
    ]
    weights_of = {2: (3, 1, 2), 7: (6, 6, 2)}
    key = key_id("layer1.weight")
    for number, (collective, dtype, count, world, rank, root, lanes) in enumerate(cases):
        plan = make_plan(collective, dtype, count, world, TABLE)
        weights = weights_of.get(number, ())
        owners = Owners(Route.first(lanes), weights)
        shown = sorted({*range(min(plan.chunks, 6)), plan.chunks // 2, plan.chunks - 1})
        chunks = ",".join(
            f"{c}:{plan.elements(c)}:{plan.sends(c, rank, root)}:{plan.receives(c, rank, root)}"
            f":{owners.owner(key, c)[0]}:{owners.owner(key, c)[1]}"
            for c in shown
        )
        lines.append(
            f"plan p{number} collective={int(collective)} dtype={int(dtype)} count={count} "
            f"world={world} rank={rank} root={root} key={key} "
            f"lanes={','.join(map(str, lanes))} weights={','.join(map(str, weights))} "
            f"chunks={plan.chunks} list={chunks}"
        )
    return lines


def text() -> str:
    lines = [
        f"preface lane{lane} lane={lane} flags={flags} hex={pack_preface(lane, flags).hex()}"
        for lane, flags in (
            (0, 0),
            (515, 0),
            (515, int(PrefaceFlag.PSK)),
            (515, int(PrefaceFlag.TLS)),
        )
    ]
    for name in ("layer1.weight", "", "ü", "~all_reduce"):
        lines.append(f"key k{len(name)} id={key_id(name)} hex={name.encode().hex()}")
    for data in (b"", b"123456789", bytes(32), b"\xff" * 32, bytes(range(32))):
        lines.append(f"crc c{len(data)} crc={crc32c(data)} hex={data.hex()}")
    lines += plan_lines()
    for name, data in frames().items():
        header = unpack_header(memoryview(data)[:HEADER_SIZE], crc32c)
        fields = " ".join(f"{k}={int(v)}" for k, v in header.fields().items())
        lines.append(f"frame {name} {fields} hex={data.hex()}")
    for name, (family, data) in bad_frames().items():
        lines.append(f"bad {name} error={family} hex={data.hex()}")
    for name, fields in handshakes().items():
        shown = (f"{k}={v.hex() if isinstance(v, bytes) else v}" for k, v in fields.items())
        lines.append(f"psk {name} {' '.join(shown)}")
    return INTRO + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
