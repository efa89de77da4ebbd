"""A JobSet with its own reducers. It starts the workers when the reducers are ready.

The JobSet ends when its workers have ended.
"""

from __future__ import annotations

from typing import Any

from reducer_tools.k8s.pod import (
    Manifest,
    container_port,
    environment,
    indexed_job,
    key_environment,
    key_mounts,
    key_volumes,
    network_policy,
    pod_template,
)
from reducer_tools.k8s.settings import PORT, Reducers, Workers

REDUCERS = "reducers"
AFTER_REDUCERS = [{"name": REDUCERS, "status": "Ready"}]
WORKERS = "workers"
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_PART_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
_MASTER_PORT = 29500
# The exit status of a drained reducer, as if SIGTERM had killed it. A Job never restarts a pod that
# ended with status 0, not even after an eviction.
_DRAINED_STATUS = "143"
# Kubernetes replaces this by the JobSet's name, from the variable in worker_environment.
_JOBSET = "$(JOBSET_NAME)"


def jobset(reducers: Reducers, workers: Workers) -> list[Manifest]:
    """The manifests, in the order in which to apply them."""
    namespace = {"namespace": reducers.namespace} if reducers.namespace else {}
    metadata = {"name": reducers.name, **namespace}
    return [
        _network_policy(reducers, metadata),
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata,
            "spec": jobset_spec(reducers, _worker_job(reducers, workers)),
        },
    ]


def jobset_spec(reducers: Reducers, worker_job: Manifest) -> Manifest:
    """The spec of a JobSet that succeeds when its workers have, since reducers run forever."""
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [worker_job["name"]]},
        "failurePolicy": {"maxRestarts": 3},
        "replicatedJobs": [_reducer_job(reducers), worker_job],
    }


def _reducer_job(reducers: Reducers) -> Manifest:
    """The reducers as a replicated job. A reducer that ends restarts under the same name."""
    labels = {"app.kubernetes.io/name": "reducer"}
    settings = {"REDUCER_DRAINED_STATUS": _DRAINED_STATUS}
    pod = pod_template(reducers, labels, settings, restartPolicy="OnFailure")
    return indexed_job(REDUCERS, reducers.replicas, 1000, pod)


def worker_pod(
    name: str, reducers: Reducers, workers: Workers, variables: list[Manifest], **more: Any
) -> Manifest:
    """The spec of a worker's pod. ``more`` are further fields of its container, ``name``."""
    container = {
        "name": name,
        "image": workers.image,
        "command": list(workers.command),
        "env": [*_worker_environment(reducers), *variables],
        **more,
        **_gpu_resources(workers),
        **key_mounts(reducers),
    }
    return {"enableServiceLinks": False, "containers": [container], **key_volumes(reducers)}


def _worker_environment(reducers: Reducers) -> list[Manifest]:
    """The variables by which a worker finds its JobSet's reducers; they fit any JobSet."""
    name = {"fieldRef": {"fieldPath": f"metadata.labels['{_JOBSET_LABEL}']"}}
    hosts = [f"{_JOBSET}-{REDUCERS}-0-{index}.{_JOBSET}" for index in range(reducers.replicas)]
    values = {
        "REDUCER_JOB": _JOBSET,
        "REDUCER_ADDRS": ",".join(f"{host}:{PORT}" for host in hosts),
    }
    return [
        {"name": "JOBSET_NAME", "valueFrom": name},
        *environment(values),
        *key_environment(reducers),
    ]


def _worker_job(reducers: Reducers, workers: Workers) -> Manifest:
    ports = [container_port("torch", _MASTER_PORT)]
    pod = worker_pod("worker", reducers, workers, _torchrun(workers), ports=ports)
    template = {"spec": {"restartPolicy": "Never", **pod}}
    return indexed_job(WORKERS, workers.count, 0, template, dependsOn=AFTER_REDUCERS)


def _gpu_resources(workers: Workers) -> Manifest:
    if not workers.gpus:
        return {}
    return {"resources": {"limits": {"nvidia.com/gpu": str(workers.gpus)}}}


def _torchrun(workers: Workers) -> list[Manifest]:
    """torchrun's options, as variables. torchrun sets RANK and WORLD_SIZE for the client."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    values = {
        "PET_NNODES": str(workers.count),
        "PET_NPROC_PER_NODE": str(workers.gpus or 1),
        "PET_MASTER_ADDR": f"{_JOBSET}-{WORKERS}-0-0.{_JOBSET}",
        "PET_MASTER_PORT": str(_MASTER_PORT),
    }
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}}
    return [rank, *environment(values)]


def _network_policy(reducers: Reducers, metadata: Manifest) -> Manifest:
    """Allow connections from pods of this JobSet."""
    own = {_JOBSET_LABEL: reducers.name}
    peer = {"podSelector": {"matchLabels": own}}
    return network_policy(metadata, {**own, _PART_LABEL: REDUCERS}, [(peer, PORT)])
