"""All kinds of deployment, and their YAML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import yaml

from reducer.k8s.jobset import jobset
from reducer.k8s.pod import Manifest
from reducer.k8s.pool import pool
from reducer.k8s.settings import Reducers, Workers
from reducer.k8s.trainer import trainer

KINDS = ("pool", "jobset", "trainer")


def render(kind: str, reducers: Reducers, workers: Workers) -> list[Manifest]:
    """The manifests of a deployment; ``workers`` are not those of a pool."""
    if kind == "pool":
        return pool(reducers)
    return jobset(reducers, workers) if kind == "jobset" else trainer(reducers, workers)


def as_yaml(manifests: Iterable[Manifest], comments: Sequence[str]) -> str:
    """The documents of one file, under ``comments``."""
    head = "".join(f"# {line}\n" for line in comments)
    documents = [
        yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100) for manifest in manifests
    ]
    return head + "---\n".join(documents)


class _Dumper(yaml.SafeDumper):
    """No anchors: they are harder to read and edit than what they save."""

    def ignore_aliases(self, data: object) -> bool:
        return True
