"""Connects to a lane of a reducer over TCP, in the mode of the job: open, psk or tls."""

from __future__ import annotations

import secrets
import socket
import ssl
from dataclasses import dataclass, field

from reducer.cluster.addresses import split_address
from reducer.wire import errors as wire
from reducer.wire.handshake import ANSWER_MAGIC, ANSWER_SIZE, NONCE_SIZE, WorkerHandshake
from reducer.wire.header import PREFACE_MAGIC, PREFACE_SIZE, PrefaceFlag, pack_preface
from reducer_client.errors import AuthenticationError


@dataclass(frozen=True)
class Dialer:
    """`dial` opens a connection on which the first frame may follow.

    ``key`` is the job's key of mode psk; ``tls`` the certificate, private key and CA of mode tls.
    ``lane``: 0 has the registry.
    """

    address: str
    job: str
    key: bytes = field(default=b"", repr=False)
    tls: tuple[str, str, str] | None = None
    lane: int = 0

    def dial(self, seconds: float) -> socket.socket:
        """Returns a connected socket.

        ``seconds`` is the limit of each wait. Raises OSError if the reducer cannot be reached, and
        AuthenticationError if one side could not prove its identity.
        """
        host, port = split_address(self.address)
        host = host.strip("[]")
        sock = socket.create_connection((host, port), timeout=seconds)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                return self._prove_tls(sock, host)
            if self.key:
                self._prove_key(sock)
            else:
                sock.sendall(pack_preface(self.lane))
        except BaseException:
            sock.close()
            raise
        return sock

    def _prove_key(self, sock: socket.socket) -> None:
        nonce = secrets.token_bytes(NONCE_SIZE)
        handshake = WorkerHandshake(self.key, self.job, self.lane, nonce)
        sock.sendall(handshake.opening)
        answer = _receive(sock, len(ANSWER_MAGIC))
        if answer == PREFACE_MAGIC:
            raise AuthenticationError(
                f"the reducer at {self.address} asks for no key, and this client has one: the "
                "reducer was started without --key-file, or with certificates"
            )
        if answer == ANSWER_MAGIC:
            answer += _receive(sock, ANSWER_SIZE - len(answer))
        try:
            proof = handshake.proof(answer)
        except wire.ProtocolError as error:
            raise AuthenticationError(
                f"the reducer at {self.address} did not prove the key of job {self.job!r}: {error}"
            ) from None
        sock.sendall(proof)

    def _prove_tls(self, sock: socket.socket, host: str) -> socket.socket:
        assert self.tls is not None
        certificate, key, authority = self.tls
        preface = pack_preface(self.lane, PrefaceFlag.TLS)
        try:
            context = ssl.create_default_context(cafile=authority)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(certificate, key)
            sock.sendall(preface)
            # From here on `wrapped` owns the descriptor.
            wrapped = context.wrap_socket(sock, server_hostname=host)
        except ssl.SSLEOFError:
            raise ConnectionError("the reducer closed the connection in the handshake") from None
        except ssl.SSLError as error:
            raise AuthenticationError(f"the reducer at {self.address}: TLS: {error}") from None
        try:
            repeated = _receive(wrapped, PREFACE_SIZE)
        except ssl.SSLError as error:
            wrapped.close()
            raise AuthenticationError(
                f"the reducer at {self.address} refuses this client's certificate: {error}"
            ) from None
        except BaseException:
            wrapped.close()
            raise
        if repeated != preface:
            wrapped.close()
            raise AuthenticationError(
                f"somebody has changed the preface on its way to {self.address}"
            )
        return wrapped


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("the reducer closed the connection in the handshake")
        data += more
    return data
