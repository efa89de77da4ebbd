"""The user's settings of a deployment, from which all manifests are made."""

from __future__ import annotations

import re
from dataclasses import dataclass

from reducer import __version__
from reducer.units import auto_lanes, needed_memory

PORT = 2222
METRICS_PORT = 2223
# The image's user (deploy/Dockerfile).
USER = 10001
MIB = 1 << 20
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_STORAGE = re.compile(r"[1-9][0-9]*(?:Mi|Gi|Ti)")
# Pods have this name with a suffix, and a host name has at most 63 characters.
_MAX_NAME = 40


class SettingsError(ValueError):
    """A setting is invalid. The text names the setting, the value and what was expected."""


@dataclass(frozen=True)
class Reducers:
    """The reducers of one deployment. Raises SettingsError for invalid settings.

    Without ``key_secret`` the reducers serve every client that reaches them. ``insecure`` must
    then be true.
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
    registry: str = ""  # size of the volume for the registry; "": no registry

    def __post_init__(self) -> None:
        _check_name("name", self.name)
        for what in ("namespace", "key_secret", "monitoring_namespace"):
            if getattr(self, what):
                _check_name(what, getattr(self, what))
        for what in ("replicas", "cpus"):
            _check_count(what, getattr(self, what))
        if self.registry and not _STORAGE.fullmatch(self.registry):
            raise SettingsError(
                f"registry: got {self.registry!r}; expected the size of a volume, such as 1Gi"
            )
        if self.memory < MIB:
            raise SettingsError(f"memory: got {self.memory} bytes; expected at least 1MiB")
        if bool(self.key_secret) == self.insecure:
            raise SettingsError(
                "expected one of --key-secret (a Secret with the file of `reducer keygen` as 'key')"
                " and --insecure (every client that reaches the reducers is served); got "
                + ("both" if self.insecure else "neither")
            )

    @property
    def lanes(self) -> int:
        """As many lanes as ``auto`` has on these cores."""
        # The manifest has the number, because on cgroup v1 a reducer does not see its limit.
        return auto_lanes(self.cpus)

    @property
    def pod_mebibytes(self) -> int:
        """The memory limit of a pod in MiB."""
        return -(-needed_memory(self.memory, self.lanes) // MIB)


@dataclass(frozen=True)
class Workers:
    """The workers of a deployment that has its own reducers."""

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
            "first and no '-' last, as Kubernetes requires"
        )
