"""What a user says of a deployment; everything else in the manifests follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reducer import __version__

PORT = 2222
METRICS_PORT = 2223
# The image's user (deploy/Dockerfile).
USER = 10001
MIB = 1 << 20
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
# Pods are called after it, with a suffix, and a host name has 63 characters at most.
_MAX_NAME = 40
# What the daemon takes beside `memory`: its main process and one for each lane, 35 MB each, and the
# kernel's socket buffers, which count, too (of each connection 256 KiB unsent, and what is on its
# way); and the tenth by which a lane may exceed its budget.
_BASE_BYTES = 128 * MIB
_LANE_BYTES = 96 * MIB


class SettingsError(ValueError):
    """A setting cannot be used; the text says which, what was expected, and what to try."""


@dataclass(frozen=True)
class Reducers:
    """The reducers of one deployment; raises SettingsError for what cannot be deployed.

    Without ``key_secret`` the reducers serve whoever reaches them, which ``insecure`` must say.
    """

    name: str = "reducer"
    namespace: str = ""
    replicas: int = 4
    image: str = f"reducer:{__version__}"
    cpus: int = 4
    memory: int = 8 << 30
    key_secret: str = ""
    insecure: bool = False
    monitoring_namespace: str = ""

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        for what in ("namespace", "key_secret", "monitoring_namespace"):
            if getattr(self, what):
                _check_name(what, getattr(self, what))
        for what in ("replicas", "cpus"):
            _check_count(what, getattr(self, what))
        if self.memory < MIB:
            raise SettingsError(f"memory: got {self.memory} bytes; expected at least 1MiB")
        if bool(self.key_secret) == self.insecure:
            raise SettingsError(
                "expected one of --key-secret (a Secret with the file of `reducer keygen` as 'key')"
                " and --insecure (whoever reaches the reducers is served); got "
                + ("both" if self.insecure else "neither")
            )

    @property
    def pod_mebibytes(self) -> int:
        """The memory limit of a pod: `memory`, and what the daemon takes beside it."""
        needed = self.memory * 1.1 + _BASE_BYTES + _LANE_BYTES * self.cpus
        return -(-int(needed) // MIB)


@dataclass(frozen=True)
class Workers:
    """The workers that are deployed together with reducers of their own."""

    count: int = 4
    image: str = "training:latest"
    gpus: int = 1
    command: tuple[str, ...] = ("torchrun", "train.py")

    def __post_init__(self) -> None:
        _check_count("workers", self.count)
        if self.gpus < 0:
            raise SettingsError(f"gpus: got {self.gpus}; expected 0 or more")


def _check_count(what: str, count: int) -> None:
    if not 1 <= count <= 1000:
        raise SettingsError(f"{what}: got {count}; expected 1 to 1000")


def _check_name(what: str, name: str) -> None:
    if not (_NAME.fullmatch(name) and len(name) <= _MAX_NAME):
        raise SettingsError(
            f"{what}: got {name!r}; expected at most {_MAX_NAME} of a-z, 0-9 and '-', a letter "
            "first and no '-' last, as Kubernetes has it"
        )
