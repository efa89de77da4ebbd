"""`deploy/gpu-proof.sh` up to the first CUDA call, and the summary of what it has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import summary
from bench.gpu.scaling import rows
from tests.support import cuda
from tests.support.cluster import ROOT
from tests.support.frameworks import needs_extra

SCRIPT = ROOT / "deploy" / "gpu-proof.sh"


def _run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, "PYTHON": sys.executable, "GPU_PROOF_OUT": str(out)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@needs_extra("torch")
@pytest.mark.skipif(not cuda.absence(), reason="there is a CUDA device")
def test_without_a_gpu_it_runs_up_to_the_first_cuda_call(tmp_path: Path) -> None:
    done = _run(tmp_path / "out", "benches")
    assert done.returncode == 3, done.stderr
    assert "stopped at the first CUDA call: " in done.stdout
    assert "no CUDA device: all before the first CUDA call has run" in done.stderr
    assert "== benches ==" not in done.stdout
    (line,) = (tmp_path / "out" / "checks.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["python"] and found["torch"] and found["system"]
    assert f"stopped at the first CUDA call: {found['error']}" in done.stdout


def test_an_unknown_group_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = _run(tmp_path / "out", "install", "bench")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bench: expected install, tests or benches" in done.stderr
    assert not (tmp_path / "out").exists()


REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="one GPU"/></testcase>
<testcase name="c"><failure message="no"/></testcase></testsuite></testsuites>"""


def _write(folder: Path, *parts: tuple[str, str]) -> None:
    lines = [json.dumps({"part": p, "seconds": 7, "status": s}) + "\n" for p, s in parts]
    (folder / "parts.jsonl").write_text("".join(lines))


def test_the_summary_names_what_is_missing(tmp_path: Path) -> None:
    _write(
        tmp_path,
        *(("checks", "ok"), ("ready", "failed"), ("ready", "ok"), ("tests-torch", "failed")),
        *(("copies", "ok"), ("training", "out of time after 200 s"), ("trace", "ok")),
    )
    (tmp_path / "tests-torch.xml").write_text(REPORT)
    assert list(summary.missing(tmp_path)) == [
        "plugin: has not run (gpu-proof.sh install)",
        "tests-torch: failed, see tests-torch.log",
        "tests-nccl: has not run (gpu-proof.sh tests)",
        "training: out of time after 200 s, see training.log",
        "training-nccl: has not run (gpu-proof.sh benches)",
        "overlap: has not run (gpu-proof.sh benches)",
        "scaling: has not run (gpu-proof.sh benches)",
        "tests-torch: 1 skipped: one GPU",
    ]


def test_the_table_has_the_tables_of_the_parts_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [part for parts in summary.PARTS.values() for part in parts]
    _write(tmp_path, *((part, "ok") for part in every))
    (tmp_path / "copies.log").write_text("4096 KiB 50.0\n")
    (tmp_path / "tests-torch.xml").write_text(REPORT.replace("skipped", "system-out"))
    monkeypatch.setattr(sys, "argv", ["summary", str(tmp_path)])
    assert summary.main() == 0
    table = (tmp_path / "table.txt").read_text()
    assert table == capsys.readouterr().out
    assert "== copies ==\n4096 KiB 50.0\n" in table
    assert "tests-torch: 2 passed, 1 failed, 0 skipped" in table
    assert table.endswith("Nothing is missing.\n")


def test_rows_of_the_scaling() -> None:
    lanes = [(2, 1), (2, 2), (2, 4), (2, 8)]
    assert list(rows(8)) == [*lanes, (4, 4), (8, 8)]
    assert list(rows(1)) == [(2, 1)]
