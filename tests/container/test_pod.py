"""The rendered pod, run by podman as a kubelet would run it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reducer_tools.k8s.render import render
from reducer_tools.k8s.settings import Reducers, Workers
from tests.support.containers import tool
from tests.support.groups import Groups, Values
from tests.support.ports import free_ports
from tests.support.wait import wait_until

NAME = "reducer-test-pod"


def pod(image: str, key: str, ports: dict[str, int]) -> dict[str, Any]:
    """The pod of the pool's StatefulSet, its ports open on this machine. The secret is a folder of
    the host's: podman 4 cannot mount one."""
    reducers = Reducers(image=image, cpus=1, memory=64 << 20, key_secret="reducer-key")
    manifests = render("pool", reducers, Workers())
    (pool,) = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    spec = pool["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["imagePullPolicy"] = "Never"
    spec["volumes"] = [{"name": "key", "hostPath": {"path": str(Path(key).parent)}}]
    for port in container["ports"]:
        port.update(hostPort=ports[port["name"]], hostIP="127.0.0.1")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


@pytest.fixture
def ports(image: str, key: str, tmp_path: Path) -> Iterator[dict[str, int]]:
    """Those of a running pod."""
    found = dict(zip(("reducer", "metrics"), free_ports(2), strict=True))
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod(f"{image}:latest", key, found)))
    try:
        tool("podman", "play", "kube", file)
        yield found
    finally:
        tool("podman", "pod", "rm", "--force", "--time", "1", NAME, check=False)


def answers(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            status: int = answer.status
            return status
    except (OSError, urllib.error.URLError):
        return 0


def test_a_rendered_pod_serves_and_answers_its_probes(ports: dict[str, int], key: str) -> None:
    wait_until(lambda: answers(ports["metrics"], "/readyz") == 200, 30, "ready")
    assert answers(ports["metrics"], "/healthz") == 200
    with Groups(2, [f"127.0.0.1:{ports['reducer']}"], "pod", key_file=key) as groups:
        groups.turn(Values(2, 2, 100_000), 0)
    (found,) = json.loads(tool("podman", "inspect", f"{NAME}-reducer").stdout)
    assert found["HostConfig"]["ReadonlyRootfs"]
    assert not found["EffectiveCaps"]
    assert found["Config"]["User"] == "10001:10001"
