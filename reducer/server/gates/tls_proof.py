"""How a lane that has connected to another lane proves itself: mode tls.

The handshake runs in threads, because the other side may be a stranger, and OpenSSL decodes a
stranger's certificate before it knows the signer (handshake_threads.py).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import cast

from reducer.core.surface.events import Dial
from reducer.core.surface.permit import ANY_RANK
from reducer.server.data.connection import Connection
from reducer.server.gates.proofs import OTHER_MODE, Begin, DialError, Proof
from reducer.server.gates.tls import permit_of
from reducer.server.gates.tls_errors import explain, is_ours, reason_of
from reducer.server.gates.tls_gate import RECEIVED_BYTES, whole_records
from reducer.server.gates.tls_link import TlsLink
from reducer.wire.header import PREFACE_MAGIC, PREFACE_SIZE, PrefaceFlag, pack_preface

# As many as for accepted connections. They are others, so that strangers at the gate cannot keep
# this lane from connecting.
THREADS = 2
_READ = 4_096  # TLS's memory grows with the bytes that it is given at once, and never shrinks


class CertificateProof(Proof):
    """``context``: of `make_context_of_client`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._threads = ThreadPoolExecutor(THREADS, "dials")

    async def prove(self, sock: socket.socket, host: str, dial: Dial) -> Begin:
        preface = pack_preface(dial.lane, PrefaceFlag.TLS)
        await asyncio.get_running_loop().sock_sendall(sock, preface)
        client = TlsClient(sock, self._context, host)
        await client.shake_hands(self._threads)
        if await client.read(PREFACE_SIZE) != preface:
            raise DialError("somebody has changed the preface on its way")
        permit = permit_of(client.tls.getpeercert() or {})
        if permit is not None and (dial.job, ANY_RANK) not in permit.places:
            raise DialError(
                f"its certificate is for {permit}; a link for job {dial.job!r} needs a certificate "
                f"with reducer://job/NAME for the whole job, or without reducer: URIs"
            )
        return client.begin

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class TlsClient:
    """TLS over a socket that nobody else reads, until a TlsLink takes over.

    ``tls`` and its two BIOs belong to a thread during a step of the handshake. If the attempt ends
    meanwhile, only the thread keeps them.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        except ValueError as error:
            raise DialError(f"{host!r} is no host name for a certificate: {error}") from None
        self._pending = bytearray()  # bytes that TLS was not given yet
        self._received = 0

    async def shake_hands(self, threads: Executor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            error = await loop.run_in_executor(threads, step, self.tls)
            await self._send()  # also the alert that tells the other side why
            try:
                if error is None:
                    return
                if not isinstance(error, ssl.SSLWantReadError):
                    raise _failure(error)
            finally:
                del error  # else the error and its traceback would be a cycle
            await self._feed()

    async def read(self, size: int) -> bytes:
        """Read exactly ``size`` decrypted bytes."""
        data = b""
        while len(data) < size:
            try:
                more = self.tls.read(size - len(data))
            except ssl.SSLWantReadError:
                await self._feed()
                continue
            except ssl.SSLError as error:
                raise _failure(error) from None
            if not more:
                raise DialError("it ended TLS before it repeated the preface")
            data += more
        return data

    def begin(self, connection: Connection) -> asyncio.BaseProtocol:
        self._incoming.write(self._pending)
        return _Beginning(self.tls, self._incoming, self._outgoing, connection)

    async def _send(self) -> None:
        if self._outgoing.pending:
            await asyncio.get_running_loop().sock_sendall(self._sock, self._outgoing.read())

    async def _feed(self) -> None:
        """Give TLS the next complete records. Collecting their bytes costs less than a step."""
        while not (end := whole_records(self._pending)):
            await self._receive()
        self._incoming.write(self._pending[:end])
        del self._pending[:end]

    async def _receive(self) -> None:
        room = min(_READ, RECEIVED_BYTES - self._received)
        if not room:
            raise DialError(f"{RECEIVED_BYTES} bytes came without the end of the handshake")
        data = await asyncio.get_running_loop().sock_recv(self._sock, room)
        if not data:
            raise DialError("it closed the connection before the end of the TLS handshake")
        if not self._received and data.startswith(PREFACE_MAGIC):
            raise DialError(OTHER_MODE)
        self._received += len(data)
        self._pending += data


class _Beginning(asyncio.BufferedProtocol):
    """Puts a TlsLink between the transport, as soon as there is one, and the connection."""

    def __init__(
        self,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        connection: Connection,
    ) -> None:
        self._parts = tls, incoming, outgoing, connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        link = TlsLink(made, *self._parts)
        made.set_protocol(link)
        link.begin()


def step(tls: ssl.SSLObject) -> Exception | None:
    """Go on with the handshake, in a thread. Returns the error, without its frames."""
    try:
        tls.do_handshake()
    except Exception as error:
        return error.with_traceback(None)
    return None


def _failure(error: Exception) -> Exception:
    """What to raise for an error of TLS; a bug, or a lack of memory, stays as it is."""
    if not isinstance(error, ssl.SSLError):
        return error
    if is_ours(error):
        return DialError(f"TLS has failed on this side: {reason_of(error)}")
    return DialError(explain(error)[1])
