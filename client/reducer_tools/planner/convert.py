"""Converts a Cloud ML Engine `trainingInput` to a Vertex AI job with reducers as its third pool.

The master becomes the first pool and the workers the second. The third pool has reducers, as many
as both need, in place of the parameter servers. Evaluators become the fourth pool. `gcloud ai
custom-jobs create --config` reads the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reducer_tools.planner.fields import Section, SpecError
from reducer_tools.planner.machines import Machines
from reducer_tools.planner.mlengine import Replicas, Training
from reducer_tools.planner.pools import Sizing
from reducer_tools.planner.request import Host

Plain = dict[str, Any]
# Fields that the result cannot have, and what to do instead.
_LEFT_OUT = {
    "hyperparameters": "make a HyperparameterTuningJob with this as its trialJobSpec",
    "region": "give --region to gcloud",
    "runtimeVersion": "Vertex AI has images instead",
    "pythonVersion": "Vertex AI has images instead",
    "encryptionConfig": "a field of the CustomJob, encryptionSpec",
}
_SECURED = {"REDUCER_KEY_FILE", "REDUCER_TLS_CERT", "REDUCER_INSECURE"}


@dataclass(frozen=True)
class Target:
    """The parts of the result that a `trainingInput` does not contain.

    If ``reducers`` is None, their number is chosen to cover the workers' bandwidth.
    ``worker_image`` may be None if the input names an image. ``environment`` has variables of the
    reducers' containers.
    """

    reducer: Host
    reducer_image: str
    reducers: int | None = None
    worker_image: str | None = None
    environment: Mapping[str, str] | None = None


def convert(
    training: Training, target: Target, machines: Machines, worker: Host
) -> tuple[Plain, list[str]]:
    """Convert a `trainingInput`. Returns the job, and notes for the user about the conversion.

    Raises SpecError with the path of the field if a value is missing in the input or a machine in
    the table.
    """
    first = _pool(training, training.master, target)
    second = _pool(training, training.workers, target) if training.workers else {}
    pools = [first, second]
    notes: list[str] = []
    if training.workers is None:
        notes.append("a single worker needs no reducers: no third pool")
    else:
        third = _reducer_pool(training, target, machines, worker)
        notes += _describe_third(training, third, target)
        pools.append(third)
    if training.evaluators is not None:
        pools += [{}] * (3 - len(pools))
        pools.append(_pool(training, training.evaluators, target))
    while not pools[-1]:
        pools.pop()
    job = {"workerPoolSpecs": pools, **_rest(training.section)}
    return job, notes + _left_out(training)


def _reducer_pool(training: Training, target: Target, machines: Machines, worker: Host) -> Plain:
    count = target.reducers
    reducer = target.reducer
    if count is None:
        job = training.as_job()
        sizing = Sizing(tuple(worker.rate(pool, machines) for pool in job.workers), None)
        count = sizing.needed(reducer.settle(machines).gbps)
    container: Plain = {"imageUri": target.reducer_image}
    if target.environment:
        pairs = target.environment.items()
        container["env"] = [{"name": name, "value": value} for name, value in pairs]
    return {
        "machineSpec": {"machineType": reducer.machine},
        "replicaCount": count,
        "containerSpec": container,
    }


def _describe_third(training: Training, third: Plain, target: Target) -> list[str]:
    reducers = f"{third['replicaCount']} x {third['machineSpec']['machineType']}"
    servers = training.parameter_servers
    notes = [f"the third pool is {reducers}"]
    if servers is not None:
        replaced = f"{servers.pool.replicas} x {servers.pool.machine}"
        notes = [f"{reducers} take the place of the parameter servers, {replaced}"]
    if not _SECURED & set(target.environment or ()):
        notes.append(
            "the reducers need a key or certificates, or permission to run without: "
            "--env REDUCER_KEY_FILE=... or --env REDUCER_INSECURE=1"
        )
    return notes


def _pool(training: Training, replicas: Replicas, target: Target) -> Plain:
    own, config = replicas.pool, replicas.config
    machine: Plain = {"machineType": own.machine}
    if own.accelerator is not None:
        machine["acceleratorType"] = own.accelerator
        machine["acceleratorCount"] = own.accelerators
    pool: Plain = {"machineSpec": machine, "replicaCount": own.replicas}
    disk = config.section("diskConfig") if config else None
    if disk is not None:
        pool["diskSpec"] = _present(
            bootDiskType=disk.text("bootDiskType"), bootDiskSizeGb=disk.count("bootDiskSizeGb")
        )
    return pool | _task(training, replicas, target)


def _task(training: Training, replicas: Replicas, target: Target) -> Plain:
    """The container or the Python package that a replica runs.

    A role that names no image uses the master's.
    """
    section, master = training.section, training.master.config
    own = replicas.config
    image = (own and own.text("imageUri")) or (master and master.text("imageUri"))
    module = section.text("pythonModule")
    if image is None and module is not None:
        return {"pythonPackageSpec": _package(training, module, target)}
    image = image or target.worker_image
    if image is None:
        path = section.at("masterConfig") + ".imageUri"
        raise SpecError(path, "an image", "none", "name one with --worker-image")
    source = own if own and "imageUri" in own else master
    command = source.texts("containerCommand") if source else None
    args = (source.texts("containerArgs") if source else None) or section.texts("args")
    return {"containerSpec": _present(imageUri=image, command=command, args=args)}


def _package(training: Training, module: str, target: Target) -> Plain:
    section = training.section
    if target.worker_image is None:
        path, advice = section.at("pythonModule"), "name Vertex AI's with --worker-image"
        raise SpecError(path, "an image that runs it", "none", advice)
    uris = section.texts("packageUris")
    if not uris:
        raise SpecError(section.at("packageUris"), "the package of pythonModule", "none")
    return _present(
        executorImageUri=target.worker_image,
        packageUris=uris,
        pythonModule=module,
        args=section.texts("args"),
    )


def _rest(section: Section) -> Plain:
    """The fields of the job that concern all pools."""
    directory, scheduling = section.text("jobDir"), section.section("scheduling")
    timeout = scheduling.text("maxRunningTime") if scheduling else None
    return _present(
        serviceAccount=section.text("serviceAccount"),
        network=section.text("network"),
        enableWebAccess=section.flag("enableWebAccess"),
        scheduling={"timeout": timeout} if timeout else None,
        baseOutputDirectory={"outputUriPrefix": directory} if directory else None,
    )


def _left_out(training: Training) -> list[str]:
    section = training.section
    return [
        f"left out: {section.at(name)} ({where})"
        for name, where in _LEFT_OUT.items()
        if name in section
    ]


def _present(**fields: object) -> Plain:
    return {name: value for name, value in fields.items() if value is not None}
