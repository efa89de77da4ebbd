"""`reducer convert`: the result for a config.yaml, and the report of what was left out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from reducer_tools.cli import main
from reducer_tools.cli.documents import parse_document
from reducer_tools.planner import specs
from tests.unit.planner.test_planner_specs import CUSTOM, tier

IMAGES = ("--reducer-image", "registry/reducer:1", "--worker-image", "registry/train:1")


def convert(tmp_path: Path, config: str, *options: str) -> Result:
    (tmp_path / "config.yaml").write_text(config)
    return CliRunner().invoke(main, ["convert", str(tmp_path / "config.yaml"), *options])


def converted(tmp_path: Path, config: str, *options: str) -> dict[str, Any]:
    result = convert(tmp_path, config, *options, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def custom(**fields: Any) -> str:
    """A cluster of 5 V100 machines, with fields changed or added."""
    accelerators = {"count": "8", "type": "NVIDIA_TESLA_V100"}
    replica = {"imageUri": "registry/own:1", "acceleratorConfig": accelerators}
    training = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-highmem-96",
        "masterConfig": replica,
        "workerType": "n1-highmem-96",
        "workerConfig": {"acceleratorConfig": accelerators},
        "workerCount": "4",
    }
    return json.dumps({"trainingInput": training | fields})


def test_custom_of_the_documents(tmp_path: Path) -> None:
    result = convert(tmp_path, CUSTOM, *IMAGES)
    assert result.exit_code == 0
    pools = parse_document(result.stdout)["workerPoolSpecs"]  # type: ignore[index]  # a mapping
    assert [(p["machineSpec"], p["replicaCount"]) for p in pools] == [
        ({"machineType": "n1-highcpu-16"}, 1),
        ({"machineType": "n1-highcpu-16"}, 9),
        ({"machineType": "n1-highcpu-16"}, 10),
    ]
    images = [pool["containerSpec"] for pool in pools]
    worker, reducer = {"imageUri": "registry/train:1"}, {"imageUri": "registry/reducer:1"}
    assert images == [worker, worker, reducer]
    notes = result.stderr.splitlines()
    assert notes[0].endswith("take the place of the parameter servers, 3 x n1-highmem-8")
    assert "REDUCER_KEY_FILE" in notes[1]


def test_the_cluster_of_the_documents_gets_its_sixteen_reducers(tmp_path: Path) -> None:
    found = converted(tmp_path, custom(), *IMAGES)
    primary, workers, reducers = found["workerPoolSpecs"]
    v100 = {"acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 8}
    assert primary["machineSpec"] == workers["machineSpec"]
    assert primary["machineSpec"] == {"machineType": "n1-highmem-96", **v100}
    assert primary["containerSpec"]["imageUri"] == "registry/own:1", "not the input's image"
    assert workers["containerSpec"]["imageUri"] == "registry/own:1", "not the master's image"
    assert (reducers["replicaCount"], reducers["machineSpec"]["machineType"]) == (
        16,
        "n1-highcpu-16",
    )


@pytest.mark.parametrize("name", ["STANDARD_1", "PREMIUM_1", "BASIC", "BASIC_GPU"])
def test_every_tier_becomes_a_job_whose_third_pool_is_large_enough(
    tmp_path: Path, name: str
) -> None:
    result = convert(tmp_path, tier(name), *IMAGES)
    assert result.exit_code == 0
    (tmp_path / "job.yaml").write_text(result.stdout)
    plan = CliRunner().invoke(main, ["plan", "--spec", str(tmp_path / "job.yaml"), "--json"])
    job = json.loads(plan.output)["job"]
    assert job["large_enough"] is True
    roles = [pool["role"] for pool in job["pools"]]
    if name.startswith("BASIC"):
        assert roles == ["primary"] and "no third pool" in result.stderr
    else:
        assert roles == ["primary", "workers", "reducers"]


def test_as_many_and_such_reducers_as_are_asked_for(tmp_path: Path) -> None:
    reducers = ("--reducers", "7", "--reducer-machine", "n2-highcpu-32")
    variable = ("--env", "REDUCER_INSECURE=1")
    result = convert(tmp_path, custom(), *IMAGES, *reducers, *variable, "--json")
    third = json.loads(result.stdout)["workerPoolSpecs"][2]
    assert third["replicaCount"] == 7
    assert third["machineSpec"] == {"machineType": "n2-highcpu-32"}
    assert third["containerSpec"]["env"] == [{"name": "REDUCER_INSECURE", "value": "1"}]
    assert "REDUCER_KEY_FILE" not in result.stderr


def test_rates_that_no_table_has(tmp_path: Path) -> None:
    unknown = custom(masterType="z9-mega-9", workerType="z9-mega-9")
    refused = convert(tmp_path, unknown, *IMAGES)
    assert refused.exit_code == 2
    assert "config.yaml: trainingInput.masterType: expected a machine of" in refused.output
    found = converted(tmp_path, unknown, *IMAGES, "--worker-gbps", "200", "--reducer-gbps", "100")
    assert found["workerPoolSpecs"][2]["replicaCount"] == 10


def test_what_goes_for_the_whole_job(tmp_path: Path) -> None:
    config = custom(
        args=["--epochs", "3"],
        jobDir="gs://bucket/out",
        network="projects/1/global/networks/n",
        serviceAccount="train@project",
        scheduling={"maxRunningTime": "7200s"},
        enableWebAccess=True,
        evaluatorType="standard_gpu",
        evaluatorCount=1,
        region="europe-west4",
        runtimeVersion="2.11",
        hyperparameters={"goal": "MAXIMIZE"},
    )
    result = convert(tmp_path, config, *IMAGES, "--json")
    found = json.loads(result.stdout)
    assert found["baseOutputDirectory"] == {"outputUriPrefix": "gs://bucket/out"}
    assert found["scheduling"] == {"timeout": "7200s"}
    assert (found["network"], found["serviceAccount"]) == (
        "projects/1/global/networks/n",
        "train@project",
    )
    assert found["enableWebAccess"] is True
    pools = found["workerPoolSpecs"]
    assert [pool["containerSpec"].get("args") for pool in (pools[0], pools[1])] == [
        ["--epochs", "3"],
        ["--epochs", "3"],
    ]
    assert pools[3]["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_K80"
    left_out = [line for line in result.stderr.splitlines() if line.startswith("left out: ")]
    assert [line.split()[2] for line in left_out] == [
        "trainingInput.hyperparameters",
        "trainingInput.region",
        "trainingInput.runtimeVersion",
    ]


def test_containers_and_disks_of_a_role(tmp_path: Path) -> None:
    master = {
        "imageUri": "registry/own:1",
        "containerCommand": ["python", "-m", "train"],
        "containerArgs": ["--lr", "0.1"],
        "diskConfig": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200},
    }
    config = custom(masterConfig=master, workerConfig={"imageUri": "registry/worker:1"})
    primary, workers, _ = converted(tmp_path, config, *IMAGES)["workerPoolSpecs"]
    assert primary["containerSpec"] == {
        "imageUri": "registry/own:1",
        "command": ["python", "-m", "train"],
        "args": ["--lr", "0.1"],
    }
    assert primary["diskSpec"] == {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}
    assert workers["containerSpec"] == {"imageUri": "registry/worker:1"}


def test_a_python_package_keeps_its_module(tmp_path: Path) -> None:
    config = tier("STANDARD_1") + (
        "  runtimeVersion: '1.4'\n  pythonModule: speech.train\n"
        "  packageUris: [gs://bucket/speech.tar.gz]\n  args: [--steps, '100']\n"
    )
    pools = converted(tmp_path, config, *IMAGES)["workerPoolSpecs"]
    package = {
        "executorImageUri": "registry/train:1",
        "packageUris": ["gs://bucket/speech.tar.gz"],
        "pythonModule": "speech.train",
        "args": ["--steps", "100"],
    }
    assert [pool.get("pythonPackageSpec") for pool in pools] == [package, package, None]


@pytest.mark.parametrize(
    ("config", "options", "text"),
    [
        (CUSTOM, (), "trainingInput.masterConfig.imageUri: expected an image, got none; name one"),
        (
            tier("STANDARD_1") + "  pythonModule: train\n",
            (),
            "trainingInput.pythonModule: expected an image that runs it, got none",
        ),
        (
            tier("STANDARD_1") + "  pythonModule: train\n",
            ("--worker-image", "image"),
            "trainingInput.packageUris: expected the package of pythonModule, got none",
        ),
        (
            custom(args="--epochs 3"),
            (),
            "trainingInput.args: expected a list, got '--epochs 3'",
        ),
        (custom(enableWebAccess="no"), (), "trainingInput.enableWebAccess: expected true or false"),
        (custom(args=[3]), (), "trainingInput.args[0]: expected text, got 3"),
        ("workerPoolSpecs: []\n", (), "trainingInput: expected a mapping, got none"),
        (custom(), ("--reducer-gbps", "0"), "reducer_gbps: expected a number above 0, got 0"),
        (custom(), ("--env", "REDUCER"), "expected NAME=VALUE, got 'REDUCER'"),
        (custom(), ("--reducer-machine", "m1"), "--reducer-machine: expected a machine of the"),
    ],
    ids=range(10),
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, config: str, options: tuple[str, ...], text: str
) -> None:
    result = convert(tmp_path, config, "--reducer-image", "image", *options)
    assert result.exit_code == 2
    assert text in result.output and not result.stdout


SCALARS = st.none() | st.booleans() | st.integers(-5, 50) | st.text(max_size=8)
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
FULL = json.loads(
    custom(
        args=["a"],
        jobDir="gs://bucket",
        scheduling={"maxRunningTime": "7200s"},
        pythonModule="train",
        packageUris=["gs://bucket/train.tar.gz"],
        evaluatorType="standard",
        evaluatorCount=1,
        enableWebAccess=True,
        network="net",
    )
)


@given(st.sampled_from(sorted(FULL["trainingInput"])), DATA, st.booleans())
def test_a_good_config_with_one_bad_field_is_converted_or_refused(
    name: str, value: Any, nested: bool
) -> None:
    damaged = copy.deepcopy(FULL)
    place = damaged["trainingInput"]
    if nested and isinstance(place[name], dict):
        place, name = place[name], next(iter(place[name]))
    place[name] = value
    result = CliRunner().invoke(
        main, ["convert", "-", *IMAGES, "--worker-gbps", "10"], input=json.dumps(damaged)
    )
    assert result.exit_code in (0, 2), result.exception
    if result.exit_code == 0:
        specs.read_job(parse_document(result.stdout))
