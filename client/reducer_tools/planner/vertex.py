"""Reads a Vertex AI job: `workerPoolSpecs`, alone or in a CustomJob or HyperparameterTuningJob.

The position in the list is the role: primary, workers, parameter servers or Reduction Server,
evaluators. An unused pool is an empty mapping (Vertex AI, "Distributed training").
"""

from __future__ import annotations

from reducer_tools.planner.fields import Section, SpecError, describe
from reducer_tools.planner.pools import Job, Pool

_ROLES = ("primary", "workers", "reducers", "evaluators")
# The fields that hold the CustomJobSpec, in a CustomJob and in a HyperparameterTuningJob.
_HOLDERS = ("jobSpec", "trialJobSpec")


def find_job_spec(document: Section) -> Section | None:
    """The section with `workerPoolSpecs`; None if there is none."""
    if "workerPoolSpecs" in document:
        return document
    return next((document.section(name) for name in _HOLDERS if name in document), None)


def read_job(spec: Section) -> Job:
    """Read the pools. Raises SpecError with the path of an invalid field."""
    items = list(spec.items("workerPoolSpecs"))
    if not 1 <= len(items) <= len(_ROLES):
        raise SpecError(spec.at("workerPoolSpecs"), "1 to 4 pools", str(len(items)))
    pools = [_read_pool(role, *item) for role, item in zip(_ROLES, items, strict=False)]
    primary, workers, reducers, _ = (*pools, None, None, None)[:4]
    if primary is None:
        path = spec.at("workerPoolSpecs") + "[0]"
        raise SpecError(path, "the primary replica", "an empty pool")
    if primary.replicas != 1:
        path = spec.at("workerPoolSpecs") + "[0].replicaCount"
        advice = "the other workers belong to workerPoolSpecs[1]"
        raise SpecError(path, "1, the primary replica", str(primary.replicas), advice)
    return Job((primary,) if workers is None else (primary, workers), reducers)


def _read_pool(role: str, path: str, value: object) -> Pool | None:
    """Read one pool; None if it is empty."""
    section = Section(path, value)
    if not section.names:
        return None
    machine = section.section("machineSpec")
    if machine is None:
        raise SpecError(section.at("machineSpec"), "a mapping", "none", "an unused pool is {}")
    name = machine.word("machineType")
    if name is None:
        raise SpecError(machine.at("machineType"), "a machine type", "none")
    replicas = section.count("replicaCount", least=1)
    accelerator, count = _read_accelerator(machine)
    _check_container(section)
    where = machine.at("machineType")
    return Pool(role, where, 1 if replicas is None else replicas, name, accelerator, count)


def _read_accelerator(machine: Section) -> tuple[str | None, int]:
    """(type, number per machine) of the accelerators; (None, 0) if there are none."""
    accelerator, count = machine.word("acceleratorType"), machine.count("acceleratorCount")
    if accelerator == "ACCELERATOR_TYPE_UNSPECIFIED":  # protobuf's value for none
        accelerator = None
    if accelerator is None and count:
        expected = f"an accelerator type, because acceleratorCount is {count}"
        raise SpecError(machine.at("acceleratorType"), expected, "none")
    if accelerator is not None and not count:
        got = describe(machine.get("acceleratorCount"))
        raise SpecError(machine.at("acceleratorCount"), "a whole number, 1 or more", got)
    return accelerator, count or 0


def _check_container(pool: Section) -> None:
    container = pool.section("containerSpec")
    if container is not None and container.text("imageUri") is None:
        raise SpecError(container.at("imageUri"), "an image", "none")
