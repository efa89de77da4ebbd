"""A worker in plain Python on `reducer.wire`, with which a test can send a daemon any bytes.

It uses one reducer with any number of lanes. Unlike the engine it has neither retransmission nor
failover.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import ssl
import struct
import time
from types import TracebackType

import numpy as np
import numpy.typing as npt

from reducer import kernels
from reducer.core.rounds.chunk_owners import Owners, Route
from reducer.core.rounds.chunk_plan import ChunkPlan, make_plan
from reducer.wire import messages
from reducer.wire.codes import Collective, DType, MessageKind, ReduceOp
from reducer.wire.decoder import Decoder, Frame
from reducer.wire.handshake import ANSWER_SIZE, NONCE_SIZE, WorkerHandshake, job_key
from reducer.wire.header import PREFACE_SIZE, Header, PrefaceFlag, pack_header, pack_preface
from reducer.wire.keys import key_id, position

crc32c = kernels.load().crc32c

TABLE = ((0, 65_536), (8 << 20, 524_288))
TIMEOUT = 30.0
HEARTBEAT = 0.25
_DTYPES = {"float32": DType.FLOAT32, "int32": DType.INT32, "float64": DType.FLOAT64}


class WorkerError(Exception):
    """The lane sent ERROR or REFUSED, or closed; `error` is the message, if there was one."""

    def __init__(self, text: str, error: messages.Error | None = None) -> None:
        super().__init__(text)
        self.error = error


def frame_of(message: messages.Message, key: int = 0) -> bytes:
    """A control frame with its CRCs."""
    payload = messages.encode(message)
    kind = messages.KIND_OF[type(message)]
    header = Header(kind, key=key, length=len(payload), payload_crc=crc32c(payload))
    return pack_header(header, crc32c) + payload


def connect(
    port: int,
    lane: int = 0,
    receive_buffer: int = 0,
    key: bytes = b"",
    job: str = "",
    tls: ssl.SSLContext | None = None,
) -> socket.socket:
    """A blocking socket that has sent its preface.

    With `key` it has also proven the key. With `tls` it has shown its certificate, and the lane has
    accepted it.
    """
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(TIMEOUT)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        preface = pack_preface(lane, PrefaceFlag.TLS)
        sock.sendall(preface)
        sock = tls.wrap_socket(sock, server_hostname="127.0.0.1")
        if sock.recv(PREFACE_SIZE) != preface:
            raise WorkerError("the lane has sent back another preface than the worker's")
        return sock
    if not key:
        sock.sendall(pack_preface(lane))
        return sock
    handshake = WorkerHandshake(job_key(key, job), job, lane, secrets.token_bytes(NONCE_SIZE))
    sock.sendall(handshake.opening)
    sock.sendall(handshake.proof(sock.recv(ANSWER_SIZE, socket.MSG_WAITALL)))
    return sock


class Link:
    """One connection to one lane: frames in, frames out."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._decoder = Decoder(crc32c, lambda header: memoryview(bytearray(header.length + 80)))
        self._error: messages.Error | None = None
        self.keys: set[str] = set()

    def receive(self) -> list[Frame]:
        """The frames of one read, up to an ERROR; raises WorkerError at the end of the stream."""
        try:
            got = self.sock.recv_into(self._decoder.get_buffer())
        except ConnectionError as error:
            raise WorkerError(f"the connection broke: {error}") from error
        if not got:
            raise WorkerError("the lane closed the connection")
        self._decoder.received(got)
        frames = list(iter(self._decoder.next_frame, None))
        while isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():  # not seen by select
            self._decoder.received(self.sock.recv_into(self._decoder.get_buffer()))
            frames += iter(self._decoder.next_frame, None)
        for place, frame in enumerate(frames):
            if frame.header.kind == MessageKind.ERROR and frame.payload is not None:
                self._error = messages.decode(messages.Error, frame.payload)
                return frames[:place]
        return frames

    def check(self) -> None:
        """Raises WorkerError if an ERROR has come; call it after the frames before the ERROR."""
        if self._error is not None:
            raise WorkerError(self._error.message, self._error)

    def close(self) -> None:
        self.sock.close()


class Worker:
    """One rank of a job on one reducer; a context manager that closes its sockets."""

    def __init__(
        self,
        port: int,
        job: str,
        rank: int,
        world_size: int,
        receive_buffer: int = 0,
        key: bytes = b"",
        tls: ssl.SSLContext | None = None,
        table: messages.ChunkTable = TABLE,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.links: list[Link] = []
        self.results: dict[tuple[int, int, int], Frame] = {}
        self.goaway = ""
        self.absent: messages.Absent | None = None
        self._port = port
        self._key = key
        self._tls = tls
        self._job = job
        self._run_id = "run" if rank == 0 else ""
        self._incarnation = secrets.token_bytes(16)
        self._selector = selectors.DefaultSelector()
        self._receive_buffer = receive_buffer
        self.most = 0  # bytes that may be unanswered under a grant
        self._credit = 0
        self._lanes = 0
        self._welcomed = 0
        self._unanswered: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._done: dict[int, int] = {}
        self._table = table
        self._beat_at = 0.0

    def hello(self, lane: int) -> Link:
        """Connect to a lane and send HELLO, without waiting for the answer."""
        sock = connect(self._port, lane, self._receive_buffer, self._key, self._job, self._tls)
        link = Link(sock)
        self.links.append(link)
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        hello = messages.Hello(
            job=self._job,
            rank=self.rank,
            world_size=self.world_size,
            incarnation=self._incarnation,
            slot=0,
            reducers=1,
            run_id=self._run_id,
            chunk_table=self._table if self.rank == 0 else (),
        )
        link.sock.sendall(frame_of(hello))
        return link

    def start(self) -> int:
        """Send HELLO to every lane. Returns the number of lanes."""
        self.hello(0)
        deadline = time.monotonic() + TIMEOUT
        while not self._lanes:
            self._poll_before(deadline, "PENDING or WELCOME")
        for lane in range(1, self._lanes):
            self.hello(lane)
        return self._lanes

    def join(self) -> Worker:
        """`start`, then wait for the WELCOME of every lane."""
        self.start()
        return self.join_started()

    def join_started(self) -> Worker:
        """The second half of `join`."""
        deadline = time.monotonic() + TIMEOUT
        while self._welcomed < self._lanes:
            self._poll_before(deadline, "WELCOME of every lane")
        return self

    def _poll_before(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise WorkerError(f"no {what} within {TIMEOUT:g} s")
        self.poll(1.0)

    def _welcome(self, payload: memoryview) -> None:
        welcome = messages.decode(messages.Welcome, payload)
        self._welcomed += 1
        self._lanes = welcome.lanes
        self._credit = welcome.credit
        self.most = welcome.credit + welcome.grant
        self._run_id = welcome.run_id
        self._table = welcome.chunk_table

    def poll(self, timeout: float = TIMEOUT) -> list[tuple[Link, Frame]]:
        """The frames that come within ``timeout``; sends a heartbeat when one is due.

        Raises:
            WorkerError: a link has ended, or a lane sent ERROR and no earlier frame is left.
        """
        deadline = time.monotonic() + timeout
        found: list[tuple[Link, Frame]] = []
        while not found:
            for link in self.links:
                link.check()
            now = time.monotonic()
            if now >= self._beat_at:
                self.heartbeat()
                self._beat_at = now + HEARTBEAT
            for key, _ in self._selector.select(min(HEARTBEAT, max(0.0, deadline - now))):
                found += self._take(key.data)
            if time.monotonic() > deadline:
                break
        return found

    def _take(self, link: Link) -> list[tuple[Link, Frame]]:
        frames = link.receive()
        for frame in frames:
            self._note(frame)
        return [(link, frame) for frame in frames]

    def _note(self, frame: Frame) -> None:
        header = frame.header
        if header.kind == MessageKind.RESULT:
            place = (header.key, header.round, header.chunk)
            self.results[place] = frame
            self._unanswered.pop(place, None)
        elif frame.payload is None:
            return
        elif header.kind == MessageKind.PENDING:
            self._lanes = messages.decode(messages.Pending, frame.payload).lanes
        elif header.kind == MessageKind.WELCOME:
            self._welcome(frame.payload)
        elif header.kind == MessageKind.ABSENT:
            self.absent = messages.decode(messages.Absent, frame.payload)
        elif header.kind == MessageKind.GOAWAY:
            self.goaway = messages.decode(messages.Goaway, frame.payload).reason

    def heartbeat(self) -> None:
        """Send a HEARTBEAT with the done positions to every lane."""
        entries = b"".join(struct.pack("<QQ", key, done) for key, done in self._done.items())
        header = Header(
            MessageKind.HEARTBEAT, rank=self.rank, length=len(entries), payload_crc=crc32c(entries)
        )
        for link in self.links:
            link.sock.sendall(pack_header(header, crc32c) + entries)

    def plan(self, array: npt.NDArray[np.generic]) -> ChunkPlan:
        return make_plan(
            Collective.ALL_REDUCE, _DTYPES[array.dtype.name], array.size, self.world_size,
            self._table,
        )  # fmt: skip

    def contribute(
        self, name: str, round_: int, array: npt.NDArray[np.generic], op: int = ReduceOp.SUM
    ) -> ChunkPlan:
        """Send every chunk, within the credit."""
        plan = self.plan(array)
        key = key_id(name)
        raw = memoryview(array.tobytes())
        owners = Owners(Route.first((len(self.links),)))
        for chunk in range(plan.chunks):
            _, lane = owners.owner(key, chunk)
            cost = plan.cost(chunk)
            while cost + sum(c for of, c in self._unanswered.values() if of == lane) > self._credit:
                self.poll()
            start = chunk * plan.sent.bytes(plan.chunk_elements)
            data = raw[start : start + plan.sends(chunk, self.rank, 0)]
            header = Header(
                MessageKind.CONTRIBUTION, dtype=_DTYPES[array.dtype.name], op=op,
                collective=Collective.ALL_REDUCE, rank=self.rank, chunk=chunk, key=key,
                round=round_, count=array.size, done=self._done.get(key, 0), length=len(data),
                payload_crc=crc32c(data),
            )  # fmt: skip
            link = self.links[lane]
            if name not in link.keys:
                link.keys.add(name)
                link.sock.sendall(frame_of(messages.Key(name), key))
            self._unanswered[key, round_, chunk] = (lane, cost)
            link.sock.sendall(pack_header(header, crc32c) + bytes(data))
        return plan

    def collect(
        self, name: str, round_: int, plan: ChunkPlan, like: npt.NDArray[np.generic]
    ) -> bytes:
        """Wait for all results of a round, and put them together."""
        key = key_id(name)
        wanted = [(key, round_, chunk) for chunk in range(plan.chunks)]
        deadline = time.monotonic() + TIMEOUT
        while not all(place in self.results for place in wanted):
            if time.monotonic() > deadline:
                raise WorkerError(f"no result of {name!r} round {round_} in {TIMEOUT:g} s")
            self.poll(1.0)
        out = bytearray(like.nbytes)
        for place in wanted:
            payload = self.results.pop(place).payload
            start = place[2] * plan.received.bytes(plan.chunk_elements)
            out[start : start + plan.result_bytes(place[2])] = (
                payload if payload is not None else b""
            )
        self._done[key] = position(round_ + 1, 0)
        return bytes(out)

    def all_reduce(
        self, name: str, round_: int, array: npt.NDArray[np.generic], op: int = ReduceOp.SUM
    ) -> bytes:
        """Contribute and collect; returns the bytes of the result."""
        plan = self.contribute(name, round_, array, op)
        return self.collect(name, round_, plan, array)

    def wait_for_absence(self) -> messages.Absent:
        """Poll until the lane names absent ranks."""
        deadline = time.monotonic() + TIMEOUT
        while self.absent is None:
            self._poll_before(deadline, "ABSENT")
        return self.absent

    def wait_for_error(self) -> messages.Error:
        """Poll until a lane sends ERROR; raises AssertionError if a lane closes without one."""
        deadline = time.monotonic() + TIMEOUT
        try:
            while time.monotonic() < deadline:
                self.poll(1.0)
        except WorkerError as ended:
            if ended.error is not None:
                return ended.error
            raise AssertionError(f"the lane closed without ERROR: {ended}") from ended
        raise AssertionError(f"no ERROR within {TIMEOUT:g} s")

    def bye(self) -> None:
        """Report the done positions, and leave cleanly."""
        self.heartbeat()
        for link in self.links:
            link.sock.sendall(pack_header(Header(MessageKind.BYE, rank=self.rank), crc32c))

    def close(self) -> None:
        self._selector.close()
        for link in self.links:
            link.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
