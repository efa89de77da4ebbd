"""Classifies OpenSSL's errors: which side has failed, the cause to count, the text to log."""

from __future__ import annotations

import ssl

_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED
# OpenSSL's words for failures of this side, in most cases for lack of memory. Other failures of
# that kind ("asn1 lib", a key that is "too weak") may be the worker's doing.
_OWN_FAILURES = (
    "malloc failure", "internal error", "missing fatal", "unable to find ecdh parameters",
)  # fmt: skip


def is_ours(error: ssl.SSLError) -> bool:
    """Whether this side has failed, so that the worker may try again."""
    reason = reason_of(error)
    return "alert" not in reason and any(words in reason for words in _OWN_FAILURES)


def explain(error: ssl.SSLError) -> tuple[str, str]:
    """The cause to count and the text to log for a handshake in which the worker has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cause = "expired" if error.verify_code == _EXPIRED else "untrusted"
        return cause, f"its certificate is refused: {error.verify_message}"
    reason = reason_of(error)
    if "did not return a certificate" in reason:
        return "untrusted", "it has no certificate"
    if "no suitable key share" in reason:
        return "garbage", "it does not offer P-256, the only key exchange that is accepted"
    if "alert" in reason:
        return "distrust", f"it refuses this reducer's certificate or TLS parameters: {reason}"
    return "garbage", f"its TLS handshake is invalid: {reason}"


def reason_of(error: OSError | ValueError) -> str:
    """The reason in OpenSSL's words, in lower case, or else the system's."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)
