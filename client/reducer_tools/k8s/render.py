"""The manifests of each kind of deployment."""

from __future__ import annotations

from reducer_tools.k8s.jobset import jobset
from reducer_tools.k8s.pod import Manifest
from reducer_tools.k8s.pool import pool
from reducer_tools.k8s.settings import Reducers, Workers
from reducer_tools.k8s.trainer import trainer

KINDS = ("pool", "jobset", "trainer")


def render(kind: str, reducers: Reducers, workers: Workers) -> list[Manifest]:
    """The manifests of a deployment. A pool ignores ``workers``."""
    if kind == "pool":
        return pool(reducers)
    return jobset(reducers, workers) if kind == "jobset" else trainer(reducers, workers)
