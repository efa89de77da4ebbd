"""Classifies OpenSSL's errors: which side failed, what to count, what to log."""

from __future__ import annotations

import ssl

_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
# OpenSSL's words where it fails of itself, in most cases for want of memory. Others of that kind
# ("asn1 lib", a key that is "too weak") may be a worker's doing as well.
_OWN_FAILURES = (
    "malloc failure", "internal error", "missing fatal", "unable to find ecdh parameters",
)  # fmt: skip


def is_ours(error: ssl.SSLError) -> bool:
    """Whether this side failed, so that the worker may try again."""
    reason = reason_of(error)
    return "alert" not in reason and any(words in reason for words in _OWN_FAILURES)


def explain(error: ssl.SSLError) -> tuple[str, str]:
    """The cause to count, and the text to log, of a handshake that the worker has failed in."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = "expired" if error.verify_code == _EXPIRED else "untrusted"
        return cause, f"its certificate is refused: {error.verify_message}"
    reason = reason_of(error)
    if "did not return a certificate" in reason:
        return "untrusted", "it has no certificate"
    if "no suitable key share" in reason:
        return "garbage", "it does not offer P-256, the one key exchange that is taken"
    if "alert" in reason:
        return "distrust", f"it refuses our certificate, or how we speak TLS: {reason}"
    return "garbage", f"no TLS handshake of ours: {reason}"


def reason_of(error: OSError | ValueError) -> str:
    """In OpenSSL's words, in lower case, where it has any."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
