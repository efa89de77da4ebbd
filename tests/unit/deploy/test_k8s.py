"""The Kubernetes manifests, validated with the schemas of Kubernetes and its operators."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner, Result

from reducer.cluster import addresses
from reducer.server import serve_options
from reducer.units import parse_size
from reducer_client import config as client_config
from reducer_tools import cli
from reducer_tools.k8s import settings

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
# An older release, and the newest one that kubernetes-validate has.
KUBERNETES = ("1.34", "1.37")
Manifest = dict[str, Any]

# Schema of the part of the Prometheus operator's ServiceMonitor that is used here.
SERVICE_MONITOR = {
    "type": "object",
    "required": ["selector", "endpoints"],
    "additionalProperties": False,
    "properties": {
        "jobLabel": {"type": "string"},
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}},
        },
        "endpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h)$"},
                },
            },
        },
    },
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["k8s", "render", *arguments])


def rendered(*arguments: str) -> list[Manifest]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


def of_kind(kind: str, manifests: list[Manifest]) -> Manifest:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_is_what_its_first_line_renders(path: Path) -> None:
    text = path.read_text()
    words = shlex.split(text.splitlines()[0].removeprefix("# "))
    assert words[:3] == ["reducer", "k8s", "render"]
    assert run(*words[3:]).output == text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_is_strictly_valid(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        check(manifest)


def check(manifest: Manifest) -> None:
    """Raise if a field is missing, misspelt or of a wrong type."""
    kind = manifest["kind"]
    if kind == "ServiceMonitor":
        jsonschema.validate(manifest["spec"], SERVICE_MONITOR)
    elif kind in CUSTOM:
        # The models drop unknown fields, so a round trip shows them.
        assert _round_trip(manifest) == manifest
        for job in jobset_spec(manifest)["replicatedJobs"]:
            template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
            check(template | {"spec": job["template"]["spec"]})
    else:
        for release in KUBERNETES:
            kubernetes_validate.validate(manifest, release, strict=True)


def jobset_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]
    return spec["template"]["spec"] if "template" in spec else spec


def _round_trip(manifest: Manifest) -> Manifest:
    from kubeflow_trainer_api import models  # takes a second, which other test files need not wait

    result: Manifest = getattr(models, CUSTOM[manifest["kind"]]).from_dict(manifest).to_dict()
    return result


# The model of each kind, of Trainer 2.3 and the JobSet 0.12 that it uses.
CUSTOM = {
    "JobSet": "JobsetV1alpha2JobSet",
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
POOL = ("--kind", "pool", "--key-secret", "k")
JOBSET = ("--kind", "jobset", "--name", "train", "--key-secret", "k")
TRAINER = ("--kind", "trainer", "--name", "train", "--key-secret", "k")


def pods(manifests: list[Manifest]) -> list[Manifest]:
    """The pod specs of the reducers."""
    found = []
    for manifest in manifests:
        if manifest["kind"] == "StatefulSet":
            found.append(manifest["spec"]["template"]["spec"])
        elif manifest["kind"] in CUSTOM:
            found += [
                job["template"]["spec"]["template"]["spec"]
                for job in jobset_spec(manifest)["replicatedJobs"]
                if job["name"] == "reducers"
            ]
    return found


def worker(manifests: list[Manifest]) -> Manifest:
    (job,) = [
        job for job in jobset_spec(manifests[-1])["replicatedJobs"] if job["name"] != "reducers"
    ]
    spec: Manifest = job["template"]["spec"]["template"]["spec"]
    return spec


def variables(container: Manifest, **known: str) -> dict[str, str]:
    """The container's environment, as Kubernetes makes it of `value` and the fields in `known`."""
    found: dict[str, str] = {}
    for entry in container["env"]:
        if "value" in entry:
            text = entry["value"]
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], text)
        else:
            found[entry["name"]] = known[entry["name"]]
    return found


@pytest.mark.parametrize("arguments", [POOL, JOBSET, TRAINER], ids=lambda found: found[1])
def test_reducers_run_locked_in(arguments: tuple[str, ...]) -> None:
    (pod,) = pods(rendered(*arguments))
    (container,) = pod["containers"]
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert ports[container[probe]["httpGet"]["port"]] == 2223
    drain = serve_options.load({}, env={}).config.drain_timeout
    assert pod["terminationGracePeriodSeconds"] >= drain + 10, "would be killed while it drains"


@pytest.mark.parametrize("arguments", [POOL, JOBSET, TRAINER], ids=lambda found: found[1])
def test_reducers_get_the_options_that_were_asked_for(arguments: tuple[str, ...]) -> None:
    (pod,) = pods(rendered(*arguments, "--cpus", "6", "--memory", "3GiB"))
    (container,) = pod["containers"]
    found = serve_options.load({}, env=variables(container)).config
    assert (found.lanes, found.memory) == (4, 3 << 30), "three quarters of 6 cores"
    assert (found.port, found.metrics_port) == (2222, 2223)
    for host in (found.host, found.metrics_host):
        assert not serve_options.is_loopback(host)
    serve_options.check_protection(found)
    assert found.key_file == container["volumeMounts"][0]["mountPath"] + "/key"
    limit = container["resources"]["limits"]["memory"]
    assert 3 << 30 < parse_size(limit + "B") < 5 << 30


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(POOL, 0), (JOBSET, 143), (TRAINER, 143)],
    ids=["pool", "jobset", "trainer"],
)
def test_a_job_starts_a_reducer_again_that_was_evicted(
    arguments: tuple[str, ...], status: int
) -> None:
    """A Job counts a pod that ends with 0 as complete; a StatefulSet starts every pod again."""
    (pod,) = pods(rendered(*arguments))
    found = serve_options.load({}, env=variables(pod["containers"][0])).config
    assert found.drained_status == status
    assert pod.get("restartPolicy") == ("OnFailure" if status else None)


def test_without_a_key_they_say_that_they_are_open() -> None:
    (pod,) = pods(rendered("--kind", "pool", "--insecure"))
    serve_options.check_protection(
        serve_options.load({}, env=variables(pod["containers"][0])).config
    )
    assert "volumes" not in pod


def test_a_pool_has_a_name_for_each_reducer() -> None:
    arguments = (*POOL, "--name", "sums", "--namespace", "ml", "--replicas", "3")
    manifests = rendered(*arguments)
    service, pool = of_kind("Service", manifests), of_kind("StatefulSet", manifests)
    assert service["spec"]["clusterIP"] == "None"
    assert pool["spec"]["serviceName"] == service["metadata"]["name"] == "sums"
    labels = pool["spec"]["template"]["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = of_kind(kind, manifests)["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        assert selector.get("matchLabels", selector) == labels
    settings = of_kind("ConfigMap", manifests)["data"]
    assert settings["REDUCER_ADDRS"].split(",") == [
        f"sums-{index}.sums.ml.svc:2222" for index in range(3)
    ]


def test_metrics_are_open_to_those_who_are_named_alone() -> None:
    closed = rendered(*POOL)
    assert not [manifest for manifest in closed if manifest["kind"] == "ServiceMonitor"]
    workers, each_other = of_kind("NetworkPolicy", closed)["spec"]["ingress"]
    assert [entry["port"] for entry in workers["ports"]] == [2222]
    labels = of_kind("NetworkPolicy", closed)["spec"]["podSelector"]
    assert each_other["from"] == [{"podSelector": labels}]
    opened = rendered(*POOL, "--monitoring-namespace", "watch")
    monitor, service = of_kind("ServiceMonitor", opened), of_kind("Service", opened)
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "reducer", "the alerts need this value of `job`"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    _, rule, _ = of_kind("NetworkPolicy", opened)["spec"]["ingress"]
    assert [entry["port"] for entry in rule["ports"]] == [2223]


@pytest.mark.parametrize("arguments", [POOL, JOBSET], ids=lambda found: found[1])
def test_reducers_may_connect_to_each_other_and_to_nobody_else(arguments: tuple[str, ...]) -> None:
    """Regression: the policy kept the primary of a table from its backup."""
    spec = of_kind("NetworkPolicy", rendered(*arguments))["spec"]
    each_other, names = spec["egress"]
    assert each_other["to"] == [{"podSelector": spec["podSelector"]}]
    assert {entry["port"] for entry in each_other["ports"]} == {2222, 2223}
    assert each_other["ports"] == spec["ingress"][-1]["ports"]
    assert {(entry["protocol"], entry["port"]) for entry in names["ports"]} == {
        ("UDP", 53), ("TCP", 53)
    }  # fmt: skip


def test_a_pool_keeps_a_registry_where_the_image_may_write() -> None:
    manifests = rendered(*POOL, "--registry", "1Gi")
    for manifest in manifests:
        check(manifest)
    pool = of_kind("StatefulSet", manifests)["spec"]
    (claim,) = pool["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    (container,) = pool["template"]["spec"]["containers"]
    folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    found = serve_options.load({}, env=variables(container)).config
    assert found.registry == folders[claim["metadata"]["name"]] + "/registry"
    assert folders["key"] + "/key" == found.key_file


def test_the_reducers_of_a_pool_know_each_other() -> None:
    manifests = rendered(*POOL, "--replicas", "3")
    (container,) = of_kind("StatefulSet", manifests)["spec"]["template"]["spec"]["containers"]
    told = of_kind("ConfigMap", manifests)["data"]["REDUCER_ADDRS"]
    assert variables(container)["REDUCER_ADDRS"] == told


@pytest.mark.parametrize("arguments", [JOBSET, TRAINER], ids=lambda found: found[1])
def test_workers_find_the_reducers_of_their_own_job(arguments: tuple[str, ...]) -> None:
    pod = worker(rendered(*arguments, "--replicas", "2", "--workers", "3"))
    (container,) = pod["containers"]
    env = variables(container, JOBSET_NAME="run7", PET_NODE_RANK="1")
    found = client_config.resolve(environ={**env, "RANK": "0", "WORLD_SIZE": "3"})
    assert found.job == "run7"
    assert found.addresses == ("run7-reducers-0-0.run7:2222", "run7-reducers-0-1.run7:2222")
    assert env["REDUCER_KEY_FILE"] == container["volumeMounts"][0]["mountPath"] + "/key"
    assert pod["enableServiceLinks"] is False


def test_a_jobset_starts_torchrun_when_the_reducers_are_ready_and_ends_with_the_workers() -> None:
    command = ("--gpus", "4", "--worker-image", "mine", "--", "torchrun", "-m", "mine", "--lr=1")
    manifests = rendered(*JOBSET, "--workers", "3", *command)
    spec = jobset_spec(manifests[-1])
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["workers"]}
    job = spec["replicatedJobs"][1]
    assert job["dependsOn"] == [{"name": "reducers", "status": "Ready"}]
    (container,) = worker(manifests)["containers"]
    assert container["image"] == "mine"
    assert container["command"] == ["torchrun", "-m", "mine", "--lr=1"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    env = variables(container, JOBSET_NAME="train", PET_NODE_RANK="1")
    assert env["PET_MASTER_ADDR"] == "train-workers-0-0.train"
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"]) == ("3", "4")


def test_a_runtime_of_trainer_has_what_trainer_asks_for() -> None:
    (cluster,) = rendered(*TRAINER)
    assert cluster["kind"] == "ClusterTrainingRuntime" and "namespace" not in cluster["metadata"]
    (runtime,) = rendered(*TRAINER, "--namespace", "ml")
    assert (runtime["kind"], runtime["metadata"]["namespace"]) == ("TrainingRuntime", "ml")
    assert jobset_spec(runtime)["successPolicy"]["targetReplicatedJobs"] == ["node"]
    node = jobset_spec(runtime)["replicatedJobs"][1]
    ancestor = node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert (node["name"], ancestor) == ("node", "trainer")
    assert [container["name"] for container in worker([runtime])["containers"]] == ["node"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--kind", "pool"), "expected one of --key-secret"),
        ((*POOL, "--insecure"), "got both"),
        ((*POOL, "--name", "Sums"), "name: got 'Sums'; expected at most 40 of a-z"),
        ((*POOL, "--name", ""), "name: got ''"),
        ((*POOL, "--name", "x" * 41), "expected at most 40"),
        ((*POOL, "--namespace", "a.b"), "namespace: got 'a.b'"),
        ((*POOL, "--replicas", "0"), "replicas: got 0; expected 1 to 1000"),
        ((*POOL, "--memory", "4K"), "memory: got 4096 bytes; expected at least 1MiB"),
        ((*JOBSET, "--workers", "0"), "workers: got 0"),
        ((*JOBSET, "--gpus", "-1"), "gpus: got -1; expected 0 or more"),
        ((*POOL, "--gpus", "8"), "--gpus is for --kind jobset or trainer; got --kind pool"),
        ((*POOL, "--workers", "4"), "--workers is for --kind jobset or trainer"),
        ((*POOL, "--worker-image", "i"), "--worker-image is for --kind jobset or trainer"),
        ((*POOL, "--", "train"), "COMMAND is for --kind jobset or trainer"),
        (
            (*TRAINER, "--monitoring-namespace", "m"),
            "--monitoring-namespace is for --kind pool; got --kind trainer",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused(arguments: tuple[str, ...], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("kind", "breakage"),
    [
        ("StatefulSet", lambda found: found["spec"].update(replica=3)),
        ("NetworkPolicy", lambda found: found["spec"].update(ingres=[])),
        ("ServiceMonitor", lambda found: found["spec"]["endpoints"][0].update(Path="/")),
        ("JobSet", lambda found: found["spec"].update(successPolice={})),
        ("JobSet", lambda found: found["spec"]["replicatedJobs"][0].update(dependOn=[])),
        (
            "ClusterTrainingRuntime",
            lambda found: jobset_spec(found)["replicatedJobs"][0]["template"]["spec"].update(x=1),
        ),
    ],
)
def test_a_misspelt_field_is_found(kind: str, breakage: Callable[[Manifest], None]) -> None:
    shipped = [found for path in SHIPPED for found in yaml.safe_load_all(path.read_text())]
    manifest = next(found for found in shipped if found["kind"] == kind)
    breakage(manifest)
    with pytest.raises(
        (AssertionError, jsonschema.ValidationError, kubernetes_validate.ValidationError)
    ):
        check(manifest)


def test_ports_have_one_value_everywhere() -> None:
    served = serve_options.Config()
    assert {served.port} == {settings.PORT, addresses.DEFAULT_PORT}
    assert {served.metrics_port} == {settings.METRICS_PORT}
