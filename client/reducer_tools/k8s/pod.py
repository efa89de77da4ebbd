"""The pod template of a reducer, and the parts of a worker's pod that concern the key."""

from __future__ import annotations

from typing import Any

from reducer.units import format_bool, format_size
from reducer_tools.k8s.settings import METRICS_PORT, PORT, USER, Reducers

Manifest = dict[str, Any]

_KEY_FOLDER = "/etc/reducer"
REGISTRY_FOLDER = "/var/lib/reducer"
REGISTRY_VOLUME = "registry"
# The file belongs to root and the pod's group can read it, which reducer.keyfile accepts.
_KEY_MODE = 0o440


def pod_template(
    reducers: Reducers, labels: dict[str, str], settings: dict[str, str], **more: Any
) -> Manifest:
    """The pod template of a reducer.

    ``settings`` are variables besides those that every reducer has. ``more`` are further fields of
    the pod's spec.
    """
    return {
        "metadata": {"labels": labels},
        "spec": {
            **more,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [_one_on_each_host(labels)],
            "containers": [_container(reducers, settings)],
            **key_volumes(reducers),
        },
    }


def _one_on_each_host(labels: dict[str, str]) -> Manifest:
    """Spread reducers over hosts, because two reducers on one host would share its NIC."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _container(reducers: Reducers, settings: dict[str, str]) -> Manifest:
    # Requests equal limits, so that a node's CPU manager can give the pod exclusive cores.
    resources = {"cpu": str(reducers.cpus), "memory": f"{reducers.pod_mebibytes}Mi"}
    return {
        "name": "reducer",
        "image": reducers.image,
        "args": ["serve"],
        "env": _environment(reducers, settings),
        "ports": [
            container_port("reducer", PORT),
            container_port("metrics", METRICS_PORT),
        ],
        "startupProbe": _probe("/readyz", periodSeconds=2, failureThreshold=30),
        "readinessProbe": _probe("/readyz", periodSeconds=5, timeoutSeconds=3),
        "livenessProbe": _probe("/healthz", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **_mounts(reducers),
    }


def _mounts(reducers: Reducers) -> Manifest:
    """The fields of a reducer's container that mount the key and the registry, if there are any."""
    found = key_mounts(reducers)
    if not reducers.registry:
        return found
    folder = {"name": REGISTRY_VOLUME, "mountPath": REGISTRY_FOLDER}
    return {"volumeMounts": [*found.get("volumeMounts", []), folder]}


def _environment(reducers: Reducers, settings: dict[str, str]) -> list[Manifest]:
    values = {
        "REDUCER_HOST": "0.0.0.0",
        "REDUCER_METRICS_HOST": "0.0.0.0",
        "REDUCER_LANES": str(reducers.lanes),
        "REDUCER_MEMORY": format_size(reducers.memory),
        "REDUCER_LOG_FORMAT": "json",
        **settings,
    }
    if reducers.insecure:
        values["REDUCER_INSECURE"] = format_bool(True)
    return [*environment(values), *key_environment(reducers)]


def _probe(path: str, **more: int) -> Manifest:
    return {"httpGet": {"path": path, "port": "metrics"}, **more}


def indexed_job(name: str, pods: int, backoff_limit: int, pod: Manifest, **more: Any) -> Manifest:
    """A replicated job of a JobSet whose pods have numbers; ``more`` are further fields of it."""
    return {
        "name": name,
        "replicas": 1,
        **more,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "backoffLimit": backoff_limit,
                "template": pod,
            }
        },
    }


def network_policy(
    metadata: Manifest, labels: dict[str, str], ports_by_peer: list[tuple[Manifest, int]]
) -> Manifest:
    """Admit each of these peers to a port of the pods with ``labels``.

    The pods also admit each other, and open connections to each other alone: a table's primary
    sends its changes to a backup, and a status page asks the other reducers. For that the pods look
    names up.
    """
    each_other = {"podSelector": {"matchLabels": labels}}
    between = [{"protocol": "TCP", "port": port} for port in (PORT, METRICS_PORT)]
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": labels},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [peer], "ports": [{"protocol": "TCP", "port": port}]}
                for peer, port in ports_by_peer
            ]
            + [{"from": [each_other], "ports": between}],
            "egress": [{"to": [each_other], "ports": between}, {"ports": names}],
        },
    }


def container_port(name: str, number: int) -> Manifest:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def environment(values: dict[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]


def key_environment(reducers: Reducers) -> list[Manifest]:
    """The variable that names the key file, if there is a key."""
    if not reducers.key_secret:
        return []
    return environment({"REDUCER_KEY_FILE": f"{_KEY_FOLDER}/key"})


def key_mounts(reducers: Reducers) -> Manifest:
    """The fields of a container that mount the key, if there is one."""
    if not reducers.key_secret:
        return {}
    return {"volumeMounts": [{"name": "key", "mountPath": _KEY_FOLDER, "readOnly": True}]}


def key_volumes(reducers: Reducers) -> Manifest:
    """The fields of a pod's spec that contain the key, if there is one."""
    if not reducers.key_secret:
        return {}
    secret = {"secretName": reducers.key_secret, "defaultMode": _KEY_MODE}
    return {"volumes": [{"name": "key", "secret": secret}]}
