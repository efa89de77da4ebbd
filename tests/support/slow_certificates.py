"""Certificates that a stranger could send: each takes OpenSSL a fifth of a second to decode.

The key of each certificate names its own elliptic curve (RFC 3279, section 2.3.5), by a generator
in compressed form over a prime p = c * 2**620 + 1. To decompress the generator, OpenSSL takes a
square root modulo p (Tonelli and Shanks), in steps that grow with the square of 620.
"""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

PRIME = 34_359_738_525 * 2**620 + 1
SIZE = 82  # bytes of an element of the field
GENERATOR_X, GENERATOR_Y, CURVE_A = 2, 3, 5
CURVE_B = (GENERATOR_Y**2 - GENERATOR_X**3 - CURVE_A * GENERATOR_X) % PRIME

INTEGER, BITS, OCTETS, OID, UTF8, TIME, SEQUENCE, SET, VERSION = (
    0x02, 0x03, 0x04, 0x06, 0x0C, 0x17, 0x30, 0x31, 0xA0,
)  # fmt: skip
EC_PUBLIC_KEY, PRIME_FIELD, ECDSA_WITH_SHA256, COMMON_NAME = (
    bytes.fromhex(value)
    for value in ("2a8648ce3d0201", "2a8648ce3d0101", "2a8648ce3d040302", "550403")
)


def _der(tag: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    size = bytes([len(data)]) if len(data) < 128 else b"\x82" + len(data).to_bytes(2, "big")
    return bytes([tag]) + size + data


def _integer(value: int) -> bytes:
    return _der(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _slow_key() -> bytes:
    point = bytes([2 + GENERATOR_Y % 2]) + GENERATOR_X.to_bytes(SIZE, "big")
    field = _der(SEQUENCE, _der(OID, PRIME_FIELD), _integer(PRIME))
    coefficients = (_der(OCTETS, value.to_bytes(SIZE, "big")) for value in (CURVE_A, CURVE_B))
    curve = _der(SEQUENCE, *coefficients)
    own = _der(SEQUENCE, _integer(1), field, curve, _der(OCTETS, point), _integer(PRIME - 12_345))
    return _der(SEQUENCE, _der(SEQUENCE, _der(OID, EC_PUBLIC_KEY), own), _der(BITS, b"\0", point))


def _name(number: int) -> bytes:
    text = _der(UTF8, b"%d" % number)
    return _der(SEQUENCE, _der(SET, _der(SEQUENCE, _der(OID, COMMON_NAME), text)))


def _certificate(number: int, key: bytes) -> str:
    """A certificate in PEM; its issuer is the next one, and nobody has signed it."""
    algorithm = _der(SEQUENCE, _der(OID, ECDSA_WITH_SHA256))
    valid = _der(SEQUENCE, _der(TIME, b"250101000000Z"), _der(TIME, b"350101000000Z"))
    version = _der(VERSION, _integer(2))
    signed = _der(
        SEQUENCE, version, _integer(1 + number), algorithm, _name(number + 1), valid,
        _name(number), key,
    )  # fmt: skip
    der = _der(SEQUENCE, signed, algorithm, _der(BITS, b"\0", _der(SEQUENCE)))
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


def slow_context(folder: Path, count: int) -> ssl.SSLContext:
    """The context of a stranger that shows one certificate and ``count`` slow ones after it."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    chain = [_certificate(0, public)]
    chain += [_certificate(number, _slow_key()) for number in range(1, count + 1)]
    path = folder / "slow.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes("".join(chain).encode() + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(path)
    return context
