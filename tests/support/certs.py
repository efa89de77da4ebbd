"""Certificates for tests of mode tls, made by a CA of the test."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = ("127.0.0.1", "::1", "localhost")


class Files:
    """PEM files of one party: its certificate, its key, and the CA that it trusts."""

    def __init__(self, folder: Path, cert: bytes, key: bytes, ca: trustme.CA) -> None:
        folder.mkdir(parents=True)
        self.cert, self.key, self.ca = (str(folder / name) for name in ("cert", "key", "ca"))
        Path(self.cert).write_bytes(cert)
        Path(self.key).touch(0o600)
        Path(self.key).write_bytes(key)
        ca.cert_pem.write_to_path(self.ca)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags for ``reducer serve``."""
        return ("--tls-cert", self.cert, "--tls-key", self.key, "--tls-ca", self.ca)

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments for ``connect``."""
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}

    def context(self) -> ssl.SSLContext:
        """The context of a worker in plain Python. As in the client, its ClientHello has one key
        share.
        """
        context = self.context_of_any_group()
        context.set_ecdh_curve("prime256v1")
        return context

    def context_of_any_group(self) -> ssl.SSLContext:
        """The same with OpenSSL's default groups: the lane requests another share (RFC 8446,
        4.1.4).
        """
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.cert, self.key)
        return context

    @property
    def environment(self) -> dict[str, str]:
        return {f"REDUCER_{name.upper()}": path for name, path in self.arguments.items()}


class Authority:
    """A CA; each file set that it issues has a folder of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self._folder = folder
        self._count = 0

    def issue(self, *names: str, expired: bool = False, trusts: Authority | None = None) -> Files:
        """A certificate for these host names and addresses, by default those of this machine."""
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        leaf = self.ca.issue_cert(*(names or NAMES), not_after=yesterday if expired else None)
        chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
        return self._write(chain, leaf.private_key_pem.bytes(), trusts or self)

    def issue_for(self, *uris: str) -> Files:
        """A certificate that has only URIs, as a worker's has."""
        return self._sign([x509.UniformResourceIdentifier(uri) for uri in uris])

    def issue_reducer(self, *uris: str, usages: Sequence[x509.ObjectIdentifier] = ()) -> Files:
        """A certificate for this machine with URIs, good for these usages only; none: for all."""
        here = [x509.IPAddress(ipaddress.ip_address(name)) for name in ("127.0.0.1", "::1")]
        return self._sign([*here, *(x509.UniformResourceIdentifier(uri) for uri in uris)], usages)

    def _sign(
        self, names: Sequence[x509.GeneralName], usages: Sequence[x509.ObjectIdentifier] = ()
    ) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        signer = serialization.load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        issuer = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker")]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        cert = builder.sign(signer, hashes.SHA256())
        return self._write(
            cert.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            self,
        )

    def _write(self, cert: bytes, key: bytes, trusts: Authority) -> Files:
        self._count += 1
        return Files(self._folder / str(self._count), cert, key, trusts.ca)


def shake_hands(
    files: Files, keylog: Path | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """Perform a TLS handshake; returns the ends of worker and lane, and the bytes in flight."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.num_tickets = 0
    context.load_cert_chain(files.cert, files.key)
    to_worker, to_lane = ssl.MemoryBIO(), ssl.MemoryBIO()
    of_worker = files.context()
    if keylog is not None:
        of_worker.keylog_filename = str(keylog)
    worker = of_worker.wrap_bio(to_worker, to_lane, server_hostname="localhost")
    lane = context.wrap_bio(to_lane, to_worker, server_side=True)
    for end in (worker, lane, worker, lane):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return worker, lane, to_worker, to_lane
