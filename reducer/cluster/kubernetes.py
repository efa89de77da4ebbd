"""Kubernetes: pods of a StatefulSet, each with a DNS name below a headless Service.

``REDUCER_SERVICE=reducer.ml.svc`` with ``REDUCER_REPLICAS=2`` stands for reducer-0.reducer.ml.svc
and reducer-1.reducer.ml.svc, where the StatefulSet has the name of the Service. For other names of
pods, ``{}`` stands for the number: ``train-reducers-0-{}.train`` for the first job of a JobSet.
"""

from __future__ import annotations

import re

from reducer.cluster.addresses import normalize_address
from reducer.cluster.variables import ClusterError, Environment, Found, find_integer, find_text
from reducer.wire.codes import MAX_REDUCERS


def find_pods(env: Environment) -> Found[tuple[str, ...]] | None:
    """The addresses of the pods; None without REDUCER_SERVICE."""
    service = find_text(env, "REDUCER_SERVICE")
    if service is None:
        _refuse_service_link(env.get("REDUCER_PORT", ""))
        return None
    count = find_integer(env, "REDUCER_REPLICAS")
    if count is None:
        raise ClusterError(
            f"REDUCER_SERVICE={service.value!r}: expected REDUCER_REPLICAS beside it, the number "
            "of its pods"
        )
    if not 1 <= count.value <= MAX_REDUCERS:
        raise ClusterError(f"REDUCER_REPLICAS={count.value}: expected 1 to {MAX_REDUCERS}")
    name = service.value.strip()
    pattern = name if "{}" in name else f"{name.partition('.')[0].partition(':')[0]}-{{}}.{name}"
    try:
        normalize_address(name.replace("{}", "0"))
        pods = [normalize_address(pattern.replace("{}", str(n))) for n in range(count.value)]
    except ClusterError as error:
        raise ClusterError(f"REDUCER_SERVICE: {error}") from None
    return Found(tuple(pods), service.source)


def is_service_link(text: str) -> bool:
    """Whether Kubernetes has set a variable to `text`, as it does for each Service by its name."""
    return re.match(r"(tcp|udp|sctp)://", text) is not None


def _refuse_service_link(port: str) -> None:
    """Raises ClusterError for a Service named reducer: its one address stands for all pods."""
    if is_service_link(port):
        raise ClusterError(
            f"REDUCER_PORT: got {port!r}, which Kubernetes sets for a Service named reducer; it "
            "leads to any one of the pods. Put enableServiceLinks: false into the pod's spec, and "
            "set REDUCER_SERVICE and REDUCER_REPLICAS"
        )
