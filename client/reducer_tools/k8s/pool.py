"""A pool of reducers that many jobs share: a StatefulSet with stable names."""

from __future__ import annotations

from reducer_tools.k8s.pod import (
    REGISTRY_FOLDER,
    REGISTRY_VOLUME,
    Manifest,
    network_policy,
    pod_template,
)
from reducer_tools.k8s.settings import METRICS_PORT, PORT, Reducers

DEFAULT_NAMESPACE = "default"


def pool(reducers: Reducers) -> list[Manifest]:
    """The manifests, in the order in which to apply them."""
    found = [_service(reducers), _stateful_set(reducers), _disruption_budget(reducers)]
    found += [_network_policy(reducers), _worker_settings(reducers)]
    if reducers.monitoring_namespace:
        found.append(_service_monitor(reducers))
    return found


def addresses(reducers: Reducers) -> list[str]:
    """The addresses for workers, which stay the same when pods are replaced.

    The names resolve in every namespace, but the NetworkPolicy admits only workers of the pool's
    namespace.
    """
    domain = f"{reducers.name}.{_namespace(reducers)}.svc"
    return [f"{reducers.name}-{index}.{domain}:{PORT}" for index in range(reducers.replicas)]


def _namespace(reducers: Reducers) -> str:
    return reducers.namespace or DEFAULT_NAMESPACE


def _labels(reducers: Reducers) -> dict[str, str]:
    return {"app.kubernetes.io/name": "reducer", "app.kubernetes.io/instance": reducers.name}


def _metadata(reducers: Reducers, suffix: str = "") -> Manifest:
    name = reducers.name + suffix
    return {"name": name, "namespace": _namespace(reducers), "labels": _labels(reducers)}


def _service(reducers: Reducers) -> Manifest:
    """A headless Service, which gives each pod a DNS name.

    The name exists before the pod is ready. Otherwise the look-up of an early worker would fail.
    """
    ports = {"reducer": PORT, "metrics": METRICS_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(reducers),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(reducers),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in ports.items()
            ],
        },
    }


def _stateful_set(reducers: Reducers) -> Manifest:
    """A StatefulSet whose updates replace one reducer at a time, without loss of a training step.

    During `minReadySeconds` workers connect to the new reducer.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(reducers),
        "spec": {
            "serviceName": reducers.name,
            "replicas": reducers.replicas,
            "podManagementPolicy": "Parallel",
            "minReadySeconds": 10,
            "selector": {"matchLabels": _labels(reducers)},
            "template": pod_template(reducers, _labels(reducers), _environment(reducers)),
            **_registry_claims(reducers),
        },
    }


def _environment(reducers: Reducers) -> dict[str, str]:
    """The addresses of all reducers, for their status pages, and the file of the registry.

    Each reducer keeps a registry, and workers use the one of the first reducer.
    """
    found = {"REDUCER_ADDRS": ",".join(addresses(reducers))}
    return found | (
        {"REDUCER_REGISTRY_FILE": f"{REGISTRY_FOLDER}/registry"} if reducers.registry else {}
    )


def _registry_claims(reducers: Reducers) -> Manifest:
    """The fields of the StatefulSet that give each reducer a volume for the registry."""
    if not reducers.registry:
        return {}
    claim = {
        "metadata": {"name": REGISTRY_VOLUME},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": reducers.registry}},
        },
    }
    return {"volumeClaimTemplates": [claim]}


def _disruption_budget(reducers: Reducers) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(reducers),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(reducers)}},
    }


def _network_policy(reducers: Reducers) -> Manifest:
    """Allow connections from pods of this namespace with the label of a worker."""
    workers = {"podSelector": {"matchLabels": {"reducer-pool": reducers.name}}}
    ports_by_peer: list[tuple[Manifest, int]] = [(workers, PORT)]
    if reducers.monitoring_namespace:
        label = {"kubernetes.io/metadata.name": reducers.monitoring_namespace}
        monitors = {"namespaceSelector": {"matchLabels": label}}
        ports_by_peer.append((monitors, METRICS_PORT))
    return network_policy(_metadata(reducers), _labels(reducers), ports_by_peer)


def _worker_settings(reducers: Reducers) -> Manifest:
    """A ConfigMap with the reducers' addresses, for the `envFrom` of workers."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(reducers, "-workers"),
        "data": {"REDUCER_ADDRS": ",".join(addresses(reducers))},
    }


def _service_monitor(reducers: Reducers) -> Manifest:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(reducers),
        "spec": {
            # By default the label `job` would be the Service's name, which alerts cannot know.
            "jobLabel": "app.kubernetes.io/name",
            "selector": {"matchLabels": _labels(reducers)},
            "endpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
        },
    }
