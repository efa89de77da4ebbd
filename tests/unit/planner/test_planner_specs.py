"""Specifications: the documents' examples, malformed fields, and arbitrary data."""

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
from reducer_tools.planner.fields import SpecError
from reducer_tools.planner.specs import read_job

V100 = {"acceleratorType": "NVIDIA_TESLA_V100", "acceleratorCount": 8}
REDUCTION_SERVER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"

# Vertex AI, "Distributed training": the gcloud line of 5 workers and 16 reducers, as a job.
REDUCTION_SERVER_JOB: dict[str, Any] = {
    "workerPoolSpecs": [
        {
            "machineSpec": {"machineType": "n1-highmem-96", **V100},
            "replicaCount": 1,
            "containerSpec": {"imageUri": "CUSTOM_CONTAINER_IMAGE_URI"},
        },
        {
            "machineSpec": {"machineType": "n1-highmem-96", **V100},
            "replicaCount": 4,
            "containerSpec": {"imageUri": "CUSTOM_CONTAINER_IMAGE_URI"},
        },
        {
            "machineSpec": {"machineType": "n1-highcpu-16"},
            "replicaCount": 16,
            "containerSpec": {"imageUri": REDUCTION_SERVER},
        },
    ]
}

# The same page: a list with all positions, comments and pools that are not used.
SKELETON = """
{
  "workerPoolSpecs": [
     // `WorkerPoolSpec` for worker pool 0, required
     {
       "machineSpec": {"machineType": "n1-standard-4"},
       "replicaCount": 1,
       "diskSpec": {}
     },
     // `WorkerPoolSpec` for worker pool 1, optional
     {},
     // `WorkerPoolSpec` for worker pool 2, optional
     {
       "machineSpec": {"machineType": "n1-highcpu-16"},
       "replicaCount": 1,
       "diskSpec": {}
     },
     // `WorkerPoolSpec` for worker pool 3, optional
     {}
   ]
}
"""

# Cloud ML Engine, "CUSTOM".
CUSTOM = """
trainingInput: 
  scaleTier: CUSTOM 
  masterType: complex_model_m 
  workerType: complex_model_m 
  parameterServerType: large_model 
  workerCount: 9 
  parameterServerCount: 3
"""  # noqa: W291  # as it is printed there


def plan(tmp_path: Path, text: str, *options: str) -> Result:
    (tmp_path / "spec").write_text(text)
    return CliRunner().invoke(main, ["plan", "--spec", str(tmp_path / "spec"), *options])


def planned(tmp_path: Path, text: str, *options: str) -> dict[str, Any]:
    result = plan(tmp_path, text, "--json", *options)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def tier(name: str) -> str:
    return f"trainingInput:\n  scaleTier: {name}\n"


def test_five_workers_have_sixteen_reducers(tmp_path: Path) -> None:
    found = planned(tmp_path, json.dumps(REDUCTION_SERVER_JOB))
    job = found["job"]
    assert (found["workers"], found["reducers"], found["reducers_needed"]) == (5, 16, 16)
    assert (job["worker_egress_gbps"], job["reducer_egress_gbps"]) == (500, 512)
    assert job["large_enough"] is True
    assert [pool["role"] for pool in job["pools"]] == ["primary", "workers", "reducers"]
    assert found["winner"] == "reducers" and found["speedup"] == pytest.approx(1.6)


def test_fifteen_are_too_few(tmp_path: Path) -> None:
    spec = copy.deepcopy(REDUCTION_SERVER_JOB)
    spec["workerPoolSpecs"][2]["replicaCount"] = 15
    assert planned(tmp_path, json.dumps(spec))["job"]["large_enough"] is False
    text = plan(tmp_path, json.dumps(spec)).output
    assert "too small: its 480 Gbit/s do not cover the workers' 500 Gbit/s" in " ".join(
        text.split()
    )
    assert "16 x n1-highcpu-16 would" in text


def test_eight_a2_workers_need_twenty_five(tmp_path: Path) -> None:
    pools = [
        {"machineSpec": {"machineType": "a2-megagpu-16g"}, "replicaCount": count}
        for count in (1, 7)
    ]
    found = planned(tmp_path, json.dumps({"workerPoolSpecs": pools}))
    assert found["job"]["reducers_needed"] == found["reducers"] == 25
    assert found["job"]["large_enough"] is False
    assert "No third pool: 25 reducers of 32 Gbit/s" in found["job"]["verdict"][0]


def test_comments_and_empty_pools_of_the_documents(tmp_path: Path) -> None:
    found = planned(tmp_path, SKELETON)
    assert [pool["role"] for pool in found["job"]["pools"]] == ["primary", "reducers"]
    assert found["workers"] == 1 and found["job"]["large_enough"] is True
    assert "A single worker needs no reducers" in plan(tmp_path, SKELETON).output


def test_a_placeholder_of_the_documents_is_named(tmp_path: Path) -> None:
    text = SKELETON.replace('{"machineType": "n1-standard-4"}', "{...}")
    result = plan(tmp_path, text)
    assert result.exit_code == 2
    assert "line 6, column 24" in result.output and "replace ... by a value" in result.output


@pytest.mark.parametrize(
    "wrap",
    [
        lambda spec: spec,
        lambda spec: {"displayName": "train", "jobSpec": spec},
        lambda spec: {"studySpec": {}, "maxTrialCount": 4, "trialJobSpec": spec},
    ],
    ids=["CustomJobSpec", "CustomJob", "HyperparameterTuningJob"],
)
def test_resources_that_hold_a_job(wrap: Any) -> None:
    job = read_job(wrap(REDUCTION_SERVER_JOB))
    assert [pool.replicas for pool in job.workers] == [1, 4]


def test_what_gcloud_and_the_python_sdk_print_is_read() -> None:
    """64-bit numbers as text, names in snake_case."""
    job = read_job(
        {
            "worker_pool_specs": [
                {
                    "machine_spec": {"machine_type": "n1-standard-16"},
                    "replica_count": "1",
                    "container_spec": {"image_uri": "image"},
                },
                {"machineSpec": {"machineType": "n1-standard-16"}, "replicaCount": "3"},
            ]
        }
    )
    assert [pool.replicas for pool in job.workers] == [1, 3] and job.reducers is None


@pytest.mark.parametrize(
    ("name", "workers", "servers", "needed"),
    [
        ("BASIC", (1, "n1-standard-4"), None, 0),
        ("BASIC_GPU", (1, "n1-standard-8"), None, 0),
        ("STANDARD_1", (5, "n1-highcpu-8"), (3, "n1-standard-4"), 8),
        ("PREMIUM_1", (20, "n1-highcpu-16"), (11, "n1-highmem-8"), 40),
    ],
)
def test_scale_tiers(tmp_path: Path, name: str, workers: Any, servers: Any, needed: int) -> None:
    found = planned(tmp_path, tier(name))
    pools = found["job"]["pools"]
    training = [pool for pool in pools if pool["role"] in ("master", "workers")]
    assert sum(pool["replicas"] for pool in training) == workers[0] == found["workers"]
    assert {pool["machine"] for pool in training} == {workers[1]}
    third = [(p["replicas"], p["machine"]) for p in pools if p["role"] == "parameter servers"]
    assert third == ([servers] if servers else [])
    assert found["job"]["reducers_needed"] == needed
    assert found["job"]["large_enough"] is (needed == 0)


def test_a_tier_is_basic_if_nothing_is_said() -> None:
    job = read_job({"trainingInput": {"region": "us-central1"}})
    assert [pool.replicas for pool in job.workers] == [1]


def test_custom_of_the_documents(tmp_path: Path) -> None:
    found = planned(tmp_path, CUSTOM)
    assert found["workers"] == 10
    assert [p["machine"] for p in found["job"]["pools"]] == [
        "n1-highcpu-16",
        "n1-highcpu-16",
        "n1-highmem-8",
    ]
    assert found["job"]["reducers_needed"] == 20  # 10 x 32 / 16
    other = planned(tmp_path, CUSTOM, "--reducer-machine", "n1-highcpu-16")
    assert other["reducers"] == 10 and other["job"]["large_enough"] is False
    faster = planned(tmp_path, CUSTOM, "--reducer-machine", "z9-mega-9", "--reducer-gbps", "200")
    assert faster["reducers"] == 2 and faster["job"]["reducer_egress_gbps"] == 48


def test_accelerators_of_compute_engine_machines(tmp_path: Path) -> None:
    replica = "{acceleratorConfig: {count: '8', type: NVIDIA_TESLA_V100}}"
    text = tier("CUSTOM") + (
        f"  masterType: n1-highmem-96\n  masterConfig: {replica}\n"
        f"  workerType: n1-highmem-96\n  workerConfig: {replica}\n  workerCount: '4'\n"
    )
    found = planned(tmp_path, text)
    assert found["worker_gbps"] == 100 and found["reducers_needed"] == 16


def test_the_slowest_worker_sets_the_pace(tmp_path: Path) -> None:
    spec = copy.deepcopy(REDUCTION_SERVER_JOB)
    spec["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-8"}
    found = planned(tmp_path, json.dumps(spec))
    assert found["worker_gbps"] == 16 and found["job"]["worker_egress_gbps"] == 416
    assert any("n1-standard-8 at 16 Gbit/s limits all" in s for s in found["job"]["verdict"])


def test_rates_and_machines_of_the_command_line_go_before(tmp_path: Path) -> None:
    text = json.dumps(REDUCTION_SERVER_JOB).replace("n1-highmem-96", "z9-mega-9")
    refused = plan(tmp_path, text)
    assert refused.exit_code == 2
    assert "workerPoolSpecs[0].machineSpec.machineType: expected a machine of" in refused.output
    assert "'z9-mega-9+8xNVIDIA_TESLA_V100'" in refused.output
    assert planned(tmp_path, text, "--worker-gbps", "100")["reducers_needed"] == 16
    (tmp_path / "machines.toml").write_text("[z9-mega-9]\ngbps = 50\nprice = 7.5\n")
    found = planned(tmp_path, text, "--machines", str(tmp_path / "machines.toml"))
    assert (found["worker_gbps"], found["worker_price"], found["reducers_needed"]) == (50, 7.5, 8)


def test_accelerators_of_reducers_are_idle(tmp_path: Path) -> None:
    spec = copy.deepcopy(REDUCTION_SERVER_JOB)
    spec["workerPoolSpecs"][2]["machineSpec"].update(V100)
    assert "NVIDIA_TESLA_V100 are idle" in plan(tmp_path, json.dumps(spec)).output


def set_at(spec: Any, path: str, value: Any) -> Any:
    """A copy with another value at a path such as ``workerPoolSpecs.0.replicaCount``."""
    found = copy.deepcopy(spec)
    *names, last = (int(name) if name.isdigit() else name for name in path.split("."))
    place = found
    for name in names:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("workerPoolSpecs", {}, "workerPoolSpecs: expected a list, got a mapping of 0"),
        ("workerPoolSpecs", [], "workerPoolSpecs: expected 1 to 4 pools, got 0"),
        ("workerPoolSpecs", [{}] * 5, "workerPoolSpecs: expected 1 to 4 pools, got 5"),
        ("workerPoolSpecs.0", {}, "workerPoolSpecs[0]: expected the primary replica, got an empty"),
        ("workerPoolSpecs.1", None, "workerPoolSpecs[1]: expected a mapping, got none"),
        ("workerPoolSpecs.1", "{}", "workerPoolSpecs[1]: expected a mapping, got '{}'"),
        (
            "workerPoolSpecs.0.replicaCount",
            3,
            "workerPoolSpecs[0].replicaCount: expected 1, the primary replica, got 3",
        ),
        (
            "workerPoolSpecs.1.replicaCount",
            0,
            "workerPoolSpecs[1].replicaCount: expected a whole number, 1 or more, got 0",
        ),
        ("workerPoolSpecs.1.replicaCount", 1.5, "expected a whole number, 1 or more, got 1.5"),
        ("workerPoolSpecs.1.replicaCount", True, "expected a whole number, 1 or more, got true"),
        pytest.param(
            "workerPoolSpecs.1.replicaCount", 10**5000, "got a number of too many digits", id="huge"
        ),
        (
            "workerPoolSpecs.2.machineSpec",
            ...,
            "workerPoolSpecs[2].machineSpec: expected a mapping, got none",
        ),
        (
            "workerPoolSpecs.2.machineSpec.machineType",
            ...,
            "workerPoolSpecs[2].machineSpec.machineType: expected a machine type, got none",
        ),
        (
            "workerPoolSpecs.2.machineSpec.machineType",
            16,
            "workerPoolSpecs[2].machineSpec.machineType: expected text, got 16",
        ),
        (
            "workerPoolSpecs.2.machineSpec.machineType",
            "n1 highcpu\n16",
            r"workerPoolSpecs[2].machineSpec.machineType: expected a name, got 'n1 highcpu\n16'",
        ),
        (
            "workerPoolSpecs.1.machineSpec.acceleratorCount",
            0,
            "workerPoolSpecs[1].machineSpec.acceleratorCount: expected a whole number, 1 or more",
        ),
        (
            "workerPoolSpecs.1.machineSpec.acceleratorType",
            ...,
            "workerPoolSpecs[1].machineSpec.acceleratorType: expected an accelerator type, because",
        ),
        (
            "workerPoolSpecs.2.containerSpec.imageUri",
            ...,
            "workerPoolSpecs[2].containerSpec.imageUri: expected an image, got none",
        ),
    ],
)
def test_the_path_of_what_is_wrong(path: str, value: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_job(set_at(REDUCTION_SERVER_JOB, path, value))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"scaleTier": "BASIC_TPU"}, "trainingInput.scaleTier: expected one of BASIC, STANDARD_1"),
        ({"scaleTier": 1}, "trainingInput.scaleTier: expected text, got 1"),
        ({"scaleTier": "CUSTOM"}, "trainingInput.masterType: expected a machine with scaleTier"),
        (
            {"scaleTier": "BASIC", "workerCount": 4},
            "trainingInput.workerCount: expected no such field with scaleTier BASIC (only CUSTOM",
        ),
        (
            {"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": 4},
            "trainingInput.workerType: expected a machine type with workerCount, got none",
        ),
        (
            {"scaleTier": "CUSTOM", "masterType": "standard", "workerCout": 4},
            "trainingInput.workerCout: expected workerCount, got 'workerCout'",
        ),
        (
            {"scaleTier": "CUSTOM", "masterType": "huge"},
            "trainingInput.masterType: expected one of standard, large_model, ",
        ),
        (
            {"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": "many"},
            "trainingInput.workerCount: expected a whole number, 0 or more, got 'many'",
        ),
        (
            {
                "scaleTier": "CUSTOM",
                "masterType": "n1-standard-8",
                "masterConfig": {"acceleratorConfig": {"count": 1}},
            },
            "trainingInput.masterConfig.acceleratorConfig.type: expected a type, because ",
        ),
        (
            {
                "scaleTier": "CUSTOM",
                "masterType": "standard_gpu",
                "masterConfig": {"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_K80"}},
            },
            "trainingInput.masterConfig.acceleratorConfig: expected no field, because machine type",
        ),
    ],
)
def test_the_path_of_what_is_wrong_in_a_config(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_job({"trainingInput": fields})
    assert text in str(caught.value)


def test_a_document_of_neither_kind() -> None:
    with pytest.raises(SpecError, match=r"document: expected workerPoolSpecs .*, got 'cluster'"):
        read_job({"cluster": {}})
    with pytest.raises(SpecError, match="document: expected a mapping, got a list of 1"):
        read_job([REDUCTION_SERVER_JOB])


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VERTEX_NAMES = ["workerPoolSpecs", "worker_pool_specs", "jobSpec", "machineSpec", "machineType"]
VERTEX_NAMES += ["replicaCount", "acceleratorType", "acceleratorCount", "containerSpec", "imageUri"]
CONFIG_NAMES = ["trainingInput", "scaleTier", "masterType", "masterConfig", "workerType", "type"]
CONFIG_NAMES += ["workerCount", "acceleratorConfig", "count", "parameterServerCount"]
NAMES = st.sampled_from([*VERTEX_NAMES, *CONFIG_NAMES])
VALUES = SCALARS | st.sampled_from(["CUSTOM", "STANDARD_1", "n1-standard-8", "standard", "4", 1, 4])
DATA = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*path, name))
    return found


def read_or_refuse(document: Any) -> None:
    try:
        read_job(document)
    except SpecError as error:
        message = str(error)
    else:
        return
    assert "expected" in message and "got" in message
    assert "\n" not in message and len(message) < 600


@given(DATA)
def test_any_data_is_read_or_refused(document: Any) -> None:
    read_or_refuse(document)


CUSTOM_DOCUMENT = {
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-8",
        "masterConfig": {"acceleratorConfig": {"count": 8, "type": "NVIDIA_TESLA_K80"}},
        "workerType": "complex_model_m",
        "workerCount": 9,
        "parameterServerType": "large_model",
        "parameterServerCount": 3,
    }
}


@given(st.sampled_from([REDUCTION_SERVER_JOB, CUSTOM_DOCUMENT]), st.data())
def test_a_good_specification_with_one_bad_place(document: Any, data: st.DataObject) -> None:
    *path, last = data.draw(st.sampled_from(places(document)))
    damaged = copy.deepcopy(document)
    place = damaged
    for name in path:
        place = place[name]
    place[last] = data.draw(DATA)
    read_or_refuse(damaged)
