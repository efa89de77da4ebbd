"""Reads a Cloud ML Engine `config.yaml`: `trainingInput`, its scale tiers and machine names.

The tiers, and the Compute Engine machine type of each name, are from the service's documentation.
The master and the workers train. Reducers take the place of the parameter servers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from reducer_tools.planner.fields import Section, SpecError, describe
from reducer_tools.planner.pools import Job, Pool


class Hardware(NamedTuple):
    """A Compute Engine machine type and the accelerators on it."""

    machine: str
    accelerator: str | None = None
    accelerators: int = 0


@dataclass(frozen=True)
class Replicas:
    """The replicas of one role of a job, and the role's `...Config` section."""

    pool: Pool
    config: Section | None = None


@dataclass(frozen=True)
class Training:
    """A `trainingInput`. Roles without replicas are None."""

    section: Section
    master: Replicas
    workers: Replicas | None
    parameter_servers: Replicas | None
    evaluators: Replicas | None = None

    def as_job(self) -> Job:
        workers = [self.master, self.workers] if self.workers else [self.master]
        servers = self.parameter_servers
        return Job(tuple(replicas.pool for replicas in workers), servers.pool if servers else None)


MACHINES = {
    "standard": Hardware("n1-standard-4"),
    "large_model": Hardware("n1-highmem-8"),
    "complex_model_s": Hardware("n1-highcpu-8"),
    "complex_model_m": Hardware("n1-highcpu-16"),
    "complex_model_l": Hardware("n1-highcpu-32"),
    "standard_gpu": Hardware("n1-standard-8", "NVIDIA_TESLA_K80", 1),
    "complex_model_m_gpu": Hardware("n1-standard-16", "NVIDIA_TESLA_K80", 4),
    "complex_model_l_gpu": Hardware("n1-standard-32", "NVIDIA_TESLA_K80", 8),
    "standard_p100": Hardware("n1-standard-8", "NVIDIA_TESLA_P100", 1),
    "complex_model_m_p100": Hardware("n1-standard-16", "NVIDIA_TESLA_P100", 4),
}
# By tier: (number, machine name) of the master, of the workers and of the parameter servers.
_TIERS = {
    "BASIC": ((1, "standard"), None, None),
    "STANDARD_1": ((1, "complex_model_s"), (4, "complex_model_s"), (3, "standard")),
    "PREMIUM_1": ((1, "complex_model_m"), (19, "complex_model_m"), (11, "large_model")),
    "BASIC_GPU": ((1, "standard_gpu"), None, None),
}
_CUSTOM = "CUSTOM"
# (name of the role in reports, prefix of its fields).
_ROLES = (
    ("master", "master"),
    ("workers", "worker"),
    ("parameter servers", "parameterServer"),
    ("evaluators", "evaluator"),
)
_FIELDS = {f"{prefix}{part}" for _, prefix in _ROLES for part in ("Type", "Config", "Count")}
_FIELDS |= {"args", "enableWebAccess", "encryptionConfig", "hyperparameters", "jobDir", "network"}
_FIELDS |= {"packageUris", "pythonModule", "pythonVersion", "region", "runtimeVersion"}
_FIELDS |= {"scaleTier", "scheduling", "serviceAccount", "useChiefInTfConfig"}
_FIELDS -= {"masterCount"}
_COMPUTE_ENGINE = re.compile(r"[a-z]+[0-9]+[a-z]*(-[a-z0-9]+)+")


def read_training(document: Section) -> Training:
    """Read the `trainingInput`. Raises SpecError with the path of an invalid field."""
    section = document.section("trainingInput")
    if section is None:
        raise SpecError(document.at("trainingInput"), "a mapping", "none")
    section.refuse_others(_FIELDS)
    tier = section.text("scaleTier") or "BASIC"
    if tier == _CUSTOM:
        return _read_custom(section)
    if tier not in _TIERS:
        expected = f"one of {', '.join((*_TIERS, _CUSTOM))}"
        raise SpecError(section.at("scaleTier"), expected, describe(tier))
    return _fill_tier(section, tier)


def _fill_tier(section: Section, tier: str) -> Training:
    for _, prefix in _ROLES:
        for part in ("Type", "Count"):
            if section.get(prefix + part):
                path, got = section.at(prefix + part), describe(section.get(prefix + part))
                expected = f"no such field with scaleTier {tier} (only {_CUSTOM} has it)"
                raise SpecError(path, expected, got)
    found = []
    for (role, prefix), row in zip(_ROLES, _TIERS[tier], strict=False):
        config, path = section.section(f"{prefix}Config"), section.at("scaleTier")
        found.append(row and Replicas(Pool(role, path, row[0], *MACHINES[row[1]]), config))
    master, workers, servers = found
    assert master is not None
    return Training(section, master, workers, servers)


def _read_custom(section: Section) -> Training:
    master, workers, servers, evaluators = (_read_role(section, *names) for names in _ROLES)
    if master is None:
        raise SpecError(section.at("masterType"), f"a machine with scaleTier {_CUSTOM}", "none")
    return Training(section, master, workers, servers, evaluators)


def _read_role(section: Section, role: str, prefix: str) -> Replicas | None:
    """Read one role; None if it has no replicas."""
    if prefix == "master":
        count = 1 if "masterType" in section else 0
    else:
        count = section.count(f"{prefix}Count") or 0
    name, path = section.word(f"{prefix}Type"), section.at(f"{prefix}Type")
    config = section.section(f"{prefix}Config")
    if not count:
        return None
    if name is None:
        raise SpecError(path, f"a machine type with {prefix}Count", "none")
    return Replicas(Pool(role, path, count, *_read_hardware(path, name, config)), config)


def _read_hardware(path: str, name: str, config: Section | None) -> Hardware:
    accelerators = config.section("acceleratorConfig") if config else None
    if name in MACHINES:
        if accelerators is not None:
            advice = "use a Compute Engine machine type to choose accelerators"
            expected = f"no field, because machine type {name!r} has fixed accelerators"
            raise SpecError(accelerators.path, expected, "a mapping", advice)
        return MACHINES[name]
    if not _COMPUTE_ENGINE.fullmatch(name):
        expected = f"one of {', '.join(MACHINES)} or a Compute Engine type such as n1-highcpu-16"
        raise SpecError(path, expected, describe(name))
    if accelerators is None:
        return Hardware(name)
    kind, count = accelerators.word("type"), accelerators.count("count", least=1)
    if kind is None or count is None:
        missing = "type" if kind is None else "count"
        expected = f"a {missing}, because acceleratorConfig needs both type and count"
        raise SpecError(accelerators.at(missing), expected, "none")
    return Hardware(name, kind, count)
