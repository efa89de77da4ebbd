"""The bytes that the NCCL plugin sends to reducers, read by Python's decoder."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.chunk_plan import make_plan
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.header import HEADER_SIZE, PREFACE_SIZE, pack_header, pack_preface
from reducer.wire.keys import key_id
from tests.support.checksum import crc32c
from tests.support.nccl_job import run
from tests.support.nccl_tables import CollNet
from tests.support.proxy import Harm, Proxies, Stream, pass_on
from tests.support.ranks import Tell
from tests.support.reducers import Reducers

WORLD = 2
COUNT = 50_001  # float32: four chunks of 64 KiB, the last one short


class Recorder:
    """A plan that records the bytes from workers, by reducer and link."""

    def __init__(self) -> None:
        self.said: dict[tuple[int, int], bytearray] = defaultdict(bytearray)

    def __call__(self, stream: Stream) -> Harm:
        return self._keep if stream.direction == "up" else pass_on

    async def _keep(self, stream: Stream, piece: bytes) -> None:
        self.said[stream.index, stream.number] += piece
        await stream.send(piece)


def _given(rank: int) -> Any:
    return np.arange(COUNT, dtype=np.float32) + rank


def _one_of_each(coll: CollNet, comm: Any, rank: int, world: int, tell: Tell) -> None:
    send, receive = _given(rank), np.empty(COUNT, np.float32)
    request = coll.all_reduce(comm, send, receive, "float32", "max")
    assert request is not None
    coll.wait(request)
    mine = np.full(10, rank, np.uint8)
    row = np.empty(10 * world, np.uint8)
    coll.wait(coll.all_gather(comm, mine, row, 10, 0))


def _frames(said: bytes) -> list[Frame]:
    """All frames of a link; asserts that Python encodes them to the same bytes."""
    assert said[:PREFACE_SIZE] == pack_preface(0)
    decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + HEADER_SIZE)))
    frames = decoder.feed(said[PREFACE_SIZE:])
    again = b"".join(pack_header(f.header, crc32c) + bytes(f.payload or b"") for f in frames)
    assert again == said[PREFACE_SIZE:]
    return frames


def _of_kind(frames: list[Frame], kind: MessageKind) -> list[Frame]:
    return [frame for frame in frames if frame.header.kind == kind]


def _hello(frames: list[Frame]) -> messages.Hello:
    """The HELLO, which must be the first frame and the only HELLO."""
    (first,) = _of_kind(frames, MessageKind.HELLO)
    assert first is frames[0] and first.payload is not None
    return messages.decode(messages.Hello, first.payload)


def _keys(frames: list[Frame]) -> dict[int, str]:
    named = {}
    for frame in _of_kind(frames, MessageKind.KEY):
        assert frame.payload is not None
        name = messages.decode(messages.Key, frame.payload).name
        assert frame.header.key == key_id(name)
        named[frame.header.key] = name
    return named


def _record() -> dict[tuple[int, int], list[Frame]]:
    recorder = Recorder()
    with (
        Reducers(2) as reducers,
        Proxies(reducers.addresses, recorder) as proxies,
    ):
        run(WORLD, proxies.addresses, _one_of_each, REDUCER_JOB="job of the test")
    return {link: _frames(bytes(said)) for link, said in recorder.said.items()}


def test_the_plugin_keeps_to_the_protocol() -> None:
    links = _record()
    assert len(links) == 2 * WORLD
    hellos = {link: _hello(frames) for link, frames in links.items()}
    _check_hellos(hellos)
    for rank in range(WORLD):
        of_rank = {link[0]: links[link] for link, hello in hellos.items() if hello.rank == rank}
        for frames in of_rank.values():
            assert frames[-1].header.kind == MessageKind.BYE
            names = _keys(frames)
            for frame in _of_kind(frames, MessageKind.CONTRIBUTION):
                assert frame.header.rank == rank and frame.header.key in names
        _check_sum(rank, of_rank)
        _check_gather(rank, of_rank)


def _check_hellos(hellos: dict[tuple[int, int], messages.Hello]) -> None:
    (run_id,) = {hello.run_id for hello in hellos.values()}
    assert run_id.startswith("nccl-") and len(run_id) == len("nccl-") + 32
    for (slot, _), hello in hellos.items():
        assert (hello.job, hello.world_size, hello.reducers) == ("job of the test", WORLD, 2)
        assert hello.slot == slot
        assert hello.chunk_table == (((0, 65_536),) if hello.rank == 0 else ())
    assert len({hello.incarnation for hello in hellos.values()}) == WORLD


def _check_sum(rank: int, of_rank: dict[int, list[Frame]]) -> None:
    """Assert that every chunk went once, to its owner, with its part of the array."""
    plan = make_plan(Collective.ALL_REDUCE, DType.FLOAT32, COUNT, WORLD, ((0, 65_536),))
    owners, raw = Owners(Route.first((1, 1))), _given(rank).tobytes()
    seen = []
    for slot, frames in of_rank.items():
        for frame in _of_kind(frames, MessageKind.CONTRIBUTION):
            header = frame.header
            if header.collective != Collective.ALL_REDUCE:
                continue
            assert (header.dtype, header.op) == (DType.FLOAT32, ReduceOp.MAX)
            assert (header.count, header.round, header.root) == (COUNT, 0, 0)
            assert owners.owner(header.key, header.chunk) == (slot, 0)
            begin = header.chunk * plan.sent.bytes(plan.chunk_elements)
            part = raw[begin : begin + plan.result_bytes(header.chunk)]
            assert bytes(frame.payload or b"") == part
            seen.append(header.chunk)
    assert sorted(seen) == list(range(plan.chunks)) == [0, 1, 2, 3]


def _check_gather(rank: int, of_rank: dict[int, list[Frame]]) -> None:
    """Assert that in each broadcast the root sent its bytes and the other ranks sent none."""
    frames = [
        frame
        for said in of_rank.values()
        for frame in _of_kind(said, MessageKind.CONTRIBUTION)
        if frame.header.collective == Collective.BROADCAST
    ]
    given = {frame.header.root: bytes(frame.payload or b"") for frame in frames}
    assert given[rank] == bytes([rank]) * 10
    assert {(f.header.dtype, f.header.op, f.header.count) for f in frames} == {
        (DType.UINT8, ReduceOp.COPY, 10)
    }
    assert not any(payload for root, payload in given.items() if root != rank)
