"""Kubeflow Trainer v2: a runtime that gives every TrainJob its own reducers."""

from __future__ import annotations

from reducer_tools.k8s.jobset import AFTER_REDUCERS, jobset_spec, worker_pod
from reducer_tools.k8s.pod import Manifest
from reducer_tools.k8s.settings import Reducers, Workers


def trainer(reducers: Reducers, workers: Workers) -> list[Manifest]:
    """A TrainingRuntime, or a ClusterTrainingRuntime if no namespace is given."""
    kind, place = "ClusterTrainingRuntime", {}
    if reducers.namespace:
        kind, place = "TrainingRuntime", {"namespace": reducers.namespace}
    labels = {"trainer.kubeflow.org/framework": "torch"}
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": kind,
            "metadata": {"name": reducers.name, **place, "labels": labels},
            "spec": {
                "mlPolicy": {"numNodes": workers.count, "torch": {}},
                "template": {"spec": jobset_spec(reducers, _node_job(reducers, workers))},
            },
        }
    ]


def _node_job(reducers: Reducers, workers: Workers) -> Manifest:
    """The workers as a replicated job.

    Trainer recognizes the job, the container and the label by their names. It fills in the number
    of workers, their command and torchrun's variables.
    """
    pod = worker_pod("node", reducers, workers, [])
    return {
        "name": "node",
        "dependsOn": AFTER_REDUCERS,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": {"spec": pod}},
        },
    }
