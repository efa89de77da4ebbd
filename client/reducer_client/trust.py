"""How reducers and this worker prove who they are: a key, certificates, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from reducer_client import config


@dataclass(frozen=True)
class Trust:
    """How the dedicated reducers and this worker prove who they are."""

    key: bytes = field(default=b"", repr=False)
    tls: tuple[str, str, str] | None = None

    @property
    def mode(self) -> str:
        return "tls" if self.tls else "psk" if self.key else "open"


def resolve_trust(job: str, given: config.JobSettings | None = None) -> Trust:
    """Find the job's key or the certificates. Raises ValueError, also if both are given."""
    given = config.JobSettings() if given is None else given
    of_job = config.resolve_key(job, given.key, given.key_file)
    tls = config.resolve_tls(given.tls_cert, given.tls_key, given.tls_ca)
    if of_job and tls:
        raise ValueError(
            "expected a key (key, key_file or REDUCER_KEY_FILE) or certificates (tls_cert, "
            "REDUCER_TLS_CERT, ...), got both: leave one of them out; an argument that is "
            '"" takes precedence over its variable'
        )
    return Trust(of_job, tls)
