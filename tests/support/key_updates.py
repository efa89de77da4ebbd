"""TLS 1.3 records of a worker that Python's ssl cannot write: KeyUpdates."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

ALERT, HANDSHAKE, DATA = 21, 22, 23
_CLOSE_NOTIFY = bytes((1, 0))
_KEY_UPDATE = 24


class RecordWriter:
    """Writes records of TLS_AES_256_GCM_SHA384 after the handshake; `keylog` is the log of ssl.

    The caller must not write through the ssl object any more.
    """

    def __init__(self, keylog: Path) -> None:
        lines = (line.split() for line in keylog.read_text().splitlines())
        secrets = {words[0]: bytes.fromhex(words[2]) for words in lines if words[0] != "#"}
        self._use(secrets["CLIENT_TRAFFIC_SECRET_0"])

    def data(self, content: bytes) -> bytes:
        return self._record(content, DATA)

    def end(self) -> bytes:
        return self._record(_CLOSE_NOTIFY, ALERT)

    def key_update(self, asks: bool = False) -> bytes:
        """A KeyUpdate; `asks`: the other side must change its key, too."""
        record = self._record(bytes((_KEY_UPDATE, 0, 0, 1, asks)), HANDSHAKE)
        self._use(self._derive(b"traffic upd", 48))
        return record

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(self._derive(b"key", 32))
        self._iv = int.from_bytes(self._derive(b"iv", 12), "big")
        self._count = 0

    def _derive(self, label: bytes, size: int) -> bytes:
        name = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes((len(name),)) + name + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)

    def _record(self, content: bytes, kind: int) -> bytes:
        inner = content + bytes((kind,))
        header = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._iv ^ self._count).to_bytes(12, "big")
        self._count += 1
        return header + self._cipher.encrypt(nonce, inner, header)
