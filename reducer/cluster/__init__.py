"""Finds the reducers and the rank of this process in the variables of launchers and clusters.

Daemon, client and NCCL plugin use one rule. For each value, the first source that is set counts:

    addresses   argument > REDUCER_ADDRS > CLUSTER_SPEC > TF_CONFIG > REDUCER_SERVICE (Kubernetes)
    rank        argument > REDUCER_RANK > torchrun > Horovod > Open MPI > Slurm > CLUSTER_SPEC >
                TF_CONFIG; the same for the world size, the local rank and the local world size

The functions are pure; they take a mapping of variables. Sources behind the first one that is set
are not parsed. The plugin finds addresses in C++; tests/vectors/cluster tests both implementations
with the same cases.
"""

from __future__ import annotations

from reducer.cluster.addresses import normalize_address
from reducer.cluster.discovery import (
    OWN_CLUSTER_JOB,
    Cluster,
    discover,
    find_addresses,
    find_job,
    find_local_ranks,
    find_master,
    find_ranks,
    find_run_id,
    find_task,
)
from reducer.cluster.kubernetes import is_service_link
from reducer.cluster.listening import find_listening
from reducer.cluster.variables import ClusterError, Found

__all__ = [
    "OWN_CLUSTER_JOB",
    "Cluster",
    "ClusterError",
    "Found",
    "discover",
    "find_addresses",
    "find_job",
    "find_listening",
    "find_local_ranks",
    "find_master",
    "find_ranks",
    "find_run_id",
    "find_task",
    "is_service_link",
    "normalize_address",
]
