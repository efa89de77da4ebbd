"""Mode tls: TLS 1.3, a certificate on each side, and the permit in a peer's certificate.

A reducer accepts any certificate of its CA. URIs in the certificate (subjectAltName) restrict the
worker to jobs, or to ranks of jobs: `reducer://job/NAME`, `reducer://job/NAME/rank/N`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from reducer import keyfile
from reducer.core.surface.permit import ANY_RANK, Permit, Place
from reducer.server.gates.tls_errors import reason_of

_URI = re.compile(r"reducer://job/([^/?#]+)(?:/rank/(\d{1,5}))?")


class TlsFilesError(ValueError):
    """A file of mode tls is unusable; the text gives the file and the reason."""


class TlsFiles(NamedTuple):
    """PEM files: this reducer's certificate with its chain, its key, and the CA of the workers."""

    cert: str
    key: str
    ca: str


def make_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of accepted connections.

    Raises TlsFilesError, which names the unusable file and gives the reason.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    context.verify_mode = ssl.CERT_REQUIRED
    # No session is resumed: every connection shows its certificate, and no state outlives it.
    context.num_tickets = 0
    # Workers list AES-128-GCM first: the fastest cipher.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def make_context_of_client(files: TlsFiles) -> ssl.SSLContext:
    """The context of connections to other reducers: it checks their certificates and host names.

    Raises TlsFilesError, which names the unusable file and gives the reason.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def _context(side: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Only one key exchange: a stranger's ClientHello for a finite field of 8,192 bits would take
    # 0.15 s. P-256, because Python 3.11.2 on OpenSSL 3 (Debian 12) raises SSLError for X25519.
    context.set_ecdh_curve("prime256v1")
    try:
        keyfile.check_private(files.key)
    except keyfile.KeyFileError as error:
        raise TlsFilesError(f"--tls-key: {error}") from None
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsFilesError(
            f"--tls-cert {files.cert} and --tls-key {files.key}: {reason_of(error)}; expected a "
            "certificate in PEM with its chain, and the key that belongs to it"
        ) from None
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise TlsFilesError(
            f"--tls-ca {files.ca}: {reason_of(error)}; expected PEM certificates of the CA that "
            "signs the workers' certificates"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; expected a key without a password")


def permit_of(certificate: Mapping[str, Any]) -> Permit | None:
    """The permit of a verified certificate; None permits any job.

    A `reducer:` URI that names no job permits nothing.
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
