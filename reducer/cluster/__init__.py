"""Where the reducers are and which rank this is, from what launchers and clusters set.

One rule for daemon, client and NCCL plugin; of each value the first source that is set counts:

    addresses   argument > REDUCER_ADDRS > CLUSTER_SPEC > TF_CONFIG > REDUCER_SERVICE (Kubernetes)
    rank        argument > REDUCER_RANK > torchrun > Horovod > Open MPI > Slurm > CLUSTER_SPEC >
                TF_CONFIG; so are the world size and the local ones

Pure functions over a mapping of variables; what comes behind in the order is not even parsed. The
plugin has the part of the addresses in C++; tests/vectors/cluster holds both to the same cases.
"""

from __future__ import annotations

from reducer.cluster.discovery import (
    Cluster,
    discover,
    find_addresses,
    find_job,
    find_local_ranks,
    find_ranks,
    find_run_id,
    find_task,
)
from reducer.cluster.found import ClusterError, Found
from reducer.cluster.kubernetes import is_service_link
from reducer.cluster.listening import find_listening

__all__ = [
    "Cluster",
    "ClusterError",
    "Found",
    "discover",
    "find_addresses",
    "find_job",
    "find_listening",
    "find_local_ranks",
    "find_ranks",
    "find_run_id",
    "find_task",
    "is_service_link",
]
