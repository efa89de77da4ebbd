"""The gate of mode tls: TLS 1.3, a certificate from each side, and what a worker's lets it join.

A reducer takes any certificate of its CA. URIs in the certificate (subjectAltName) narrow that to
jobs, and to ranks of jobs: `reducer://job/NAME`, `reducer://job/NAME/rank/N`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

from reducer import keyfile
from reducer.config import ConfigError
from reducer.core.permit import ANY_RANK, Permit, Place
from reducer.server.gate import Admit, Gate, Newcomer
from reducer.server.tls_errors import explain, is_ours, reason_of
from reducer.server.tls_link import TlsLink

# What a newcomer may send; a ClientHello and a chain of three certificates need 6 KiB.
RECEIVED_BYTES = 16_384
# Between get_buffer and buffer_updated nothing else runs: one buffer serves every newcomer. It is
# small, as TLS's memory grows with what it is given at once, and stays as large.
_RECEIVED = memoryview(bytearray(4_096))
_URI = re.compile(r"reducer://job/([^/?#]+)(?:/rank/(\d{1,5}))?")


class TlsFiles(NamedTuple):
    """PEM files: our certificate with its chain, its key, and the CA of the workers."""

    cert: str
    key: str
    ca: str


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises ConfigError, which names the file that is no good and says why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    # Nothing is resumed: every connection shows its certificate, and nothing is kept of it.
    context.num_tickets = 0
    # One key exchange: of a finite field of 8,192 bits, a stranger's ClientHello takes 0.15 s.
    context.set_ecdh_curve("X25519")
    # Workers name AES-128-GCM first, the fastest.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        keyfile.check_private(files.key)
    except keyfile.KeyFileError as error:
        raise ConfigError(f"--tls-key: {error}") from None
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-cert {files.cert} and --tls-key {files.key}: {reason_of(error)}; expected a "
            "certificate in PEM with its chain, and the key that belongs to it"
        ) from None
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--tls-ca {files.ca}: {reason_of(error)}; expected the certificates in PEM of whoever "
            "signs those of the workers"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is here to type its password")


def permit_of(certificate: Mapping[str, Any]) -> Permit | None:
    """What a certificate that was checked lets its worker join; None: anything.

    A URI that has our scheme and is no place of ours lets nobody join anything.
    """
    names: tuple[tuple[str, str], ...] = certificate.get("subjectAltName", ())
    uris = [name for kind, name in names if kind == "URI" and name.lower().startswith("reducer:")]
    if not uris:
        return None
    return Permit("certificate", tuple(place for place in map(_place, uris) if place is not None))


def _place(uri: str) -> Place | None:
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    return unquote(found[1]), ANY_RANK if found[2] is None else int(found[2])


class TlsGate(Gate):
    """Runs the TLS handshakes of one lane."""

    def __init__(self, context: ssl.SSLContext, admit: Admit) -> None:
        super().__init__(admit)
        self._context = context

    def newcomer(self, preface: bytes) -> TlsNewcomer:
        return TlsNewcomer(self, self._context, preface)


class TlsNewcomer(Newcomer):
    """Whoever fails gets TLS's own alert, so that he can tell why, and the rest of his 2 seconds to
    read it: closing at once would send RST, and RST destroys what is on its way."""

    __slots__ = (
        "_done", "_incoming", "_outgoing", "_preface", "_received", "_tls", "_told", "_waits",
    )  # fmt: skip

    def __init__(self, gate: TlsGate, context: ssl.SSLContext, preface: bytes) -> None:
        super().__init__(gate)
        self._waits = False
        self._preface = preface
        self._received = 0
        self._told = False
        self._done = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _RECEIVED[: RECEIVED_BYTES - self._received]

    def _take_bytes(self, nbytes: int) -> None:
        self._received += nbytes
        if not self._told:
            self._incoming.write(_RECEIVED[:nbytes])
            if not self._waits:
                self._waits = True
                self._gate.work_for(self)
        if self._received == RECEIVED_BYTES and not self._done:
            self.refuse("oversized", f"{RECEIVED_BYTES} bytes, and no end of the handshake")

    def _go_on(self) -> None:
        self._waits = False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError as error:
            if is_ours(error):
                raise
            self._tell(*explain(error))
        else:
            self._hand_over()

    def _why_it_left(self) -> str:
        return "it closed the connection before the end of the TLS handshake"

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _tell(self, cause: str, text: str) -> None:
        self._told = True
        self._gate.note(cause, self._peer, text)
        self._send()
        self._transport.write_eof()

    def refuse(self, cause: str, text: str) -> None:
        if self._told:
            self._end()
            self._transport.abort()
        else:
            super().refuse(cause, text)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._told:
            self._end()
        else:
            super().connection_lost(exc)

    def _hand_over(self) -> None:
        self._done = True
        self._end()
        permit = permit_of(self._tls.getpeercert() or {})
        connection = self._gate.admit(permit)
        link = TlsLink(self._transport, self._tls, self._incoming, self._outgoing, connection)
        self._transport.set_protocol(cast(asyncio.BufferedProtocol, link))
        # The preface came in the clear. Only what is said in here tells that nobody has changed it.
        link.write(self._preface)
        link.begin()
