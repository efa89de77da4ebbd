"""Finds the reducers and the rank of this process in the variables of launchers and clusters.

Daemon, client and NCCL plugin use one rule. For each value, the first source that is set counts:

    addresses   argument > REDUCER_ADDRS > CLUSTER_SPEC > TF_CONFIG > REDUCER_SERVICE (Kubernetes)
    rank        argument > REDUCER_RANK > torchrun > Horovod > Open MPI > Slurm > CLUSTER_SPEC >
                TF_CONFIG; the same for the world size, the local rank and the local world size

The functions are pure; they take a mapping of variables. Sources behind the first one that is set
are not parsed. The plugin finds addresses in C++; tests/vectors/cluster tests both implementations
with the same cases.

This file imports nothing: a lane process needs `addresses` alone, and starts sooner.
"""
