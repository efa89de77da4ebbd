"""Checks the files of deploy/ without running them; tests/container runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from reducer.server import serve_options
from reducer_tools import cli

DEPLOY = Path(__file__).parents[3] / "deploy"
# The Dockerfiles with which users build their own images.
DOCKERFILES = sorted(DEPLOY.glob("*Dockerfile"))

# Schema of the parts of Vertex AI's CustomJobSpec that are used here.
_STRING = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}


def _strict(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "additionalProperties": False,
        "properties": properties,
    }


VERTEX_JOB = _strict(
    "workerPoolSpecs",
    network=_STRING,
    workerPoolSpecs={
        "type": "array",
        "minItems": 1,
        "maxItems": 4,
        "items": _strict(
            "machineSpec replicaCount containerSpec",
            machineSpec=_strict(
                "machineType",
                machineType=_STRING,
                acceleratorType=_STRING,
                acceleratorCount=_COUNT,
            ),
            replicaCount=_COUNT,
            containerSpec=_strict(
                "imageUri",
                imageUri=_STRING,
                command={"type": "array", "items": _STRING},
                args={"type": "array", "items": _STRING},
                env={"type": "array", "items": _strict("name value", name=_STRING, value=_STRING)},
            ),
        ),
    },
)


def systemd_version() -> int:
    """The version of systemd; 0 without systemd."""
    if shutil.which("systemd-analyze") is None:
        return 0
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, check=True).stdout
    return int(said.split()[1])


def test_the_vertex_job_has_enough_reducers_in_its_third_pool() -> None:
    file = DEPLOY / "vertex" / "job.yaml"
    job = yaml.safe_load(file.read_text())
    jsonschema.validate(job, VERTEX_JOB)
    first, others, reducers = job["workerPoolSpecs"]
    assert first == {**others, "replicaCount": 1}
    asked = CliRunner().invoke(cli.main, ["plan", "--spec", str(file), "--json"])
    plan = json.loads(asked.output)
    assert plan["workers"] == first["replicaCount"] + others["replicaCount"]
    assert plan["reducers"] == reducers["replicaCount"] == plan["reducers_needed"]
    environment = {entry["name"]: entry["value"] for entry in reducers["containerSpec"]["env"]}
    # The image sets the host; this file and CLUSTER_SPEC set the rest.
    serve_options.check_protection(
        serve_options.load({}, env={"REDUCER_HOST": "0.0.0.0", **environment}).config
    )


def test_the_slurm_script_is_bash() -> None:
    script = DEPLOY / "slurm" / "training.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    parts = script.read_text().split("#SBATCH hetjob")
    assert len(parts) == 2, "expected a job of two parts, reducers and workers"


@pytest.mark.skipif(systemd_version() < 250, reason="needs systemd-analyze of systemd 250 or later")
def test_the_unit_is_sandboxed(tmp_path: Path) -> None:
    """systemd scores what a service may do; a service that may do everything has 10 points."""
    unit = tmp_path / "reducer.service"
    text = (DEPLOY / "systemd" / "reducer.service").read_text()
    program = shutil.which("true")
    unit.write_text(text.replace("/opt/reducer/bin/reducer serve", f"{program}"))
    verify = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    ours = [line for line in verify.stderr.splitlines() if "reducer.service" in line]
    assert verify.returncode == 0 and not ours, verify.stderr
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit]
    security = subprocess.run(command, capture_output=True, text=True, check=False)
    assert security.returncode == 0, security.stdout


def test_the_units_variables_are_options() -> None:
    text = (DEPLOY / "systemd" / "reducer.service").read_text()
    lines = re.findall(r"^Environment=(.*)$", text, re.M)
    given = dict(pair.split("=", 1) for line in lines for pair in line.split())
    known = {serve_options.env_name(name) for name in serve_options.options()}
    assert set(given) <= known
    serve_options.check_protection(serve_options.load({}, env=given).config)


def test_the_unit_outlives_a_lane_that_is_killed_for_memory() -> None:
    """By default systemd would stop the whole service, although the daemon restarts the lane."""
    text = (DEPLOY / "systemd" / "reducer.service").read_text()
    assert re.findall(r"^OOMPolicy=(.*)$", text, re.M) == ["continue"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_built_from_what_the_user_names(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) == {"${BASE}"}
    # A name with a slash could name a registry.
    base = re.search(r"^ARG BASE=(\S+)$", text, re.M)
    assert base and "/" not in base[1]


def test_both_images_begin_with_the_same_build() -> None:
    """A machine that builds both images then compiles only once."""
    builds = [
        re.search(r"^FROM.*?AS build\n(.*?pip wheel.*?)$", path.read_text(), re.M | re.S)
        for path in DOCKERFILES
    ]
    assert len(builds) == 2 and builds[0] and builds[1]
    assert builds[0][1] == builds[1][1]
