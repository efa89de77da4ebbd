"""`bench.training` over loopback: every contender trains, ranks agree, the sums are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed

from bench.training import devices
from bench.training.case import COMPUTE, Case, from_json, parse_contender
from bench.training.overlap import read
from bench.training.report import load
from bench.training.run import Outcome, TrainingError, check_outcomes, step_seconds
from bench.training.summary import Line, summarize
from bench.training.text import Passages
from tests.support.cluster import ROOT, environment

CONTENDERS = ("gloo", "reducers", "gloo-bf16", "reducers-bf16", COMPUTE)


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment({"PYTHONWARNINGS": "default"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON lines of a run with two workers and two steps for each contender."""
    path = tmp_path_factory.mktemp("training") / "results.jsonl"
    case = ["--loopback", "--size", "tiny", "--workers", "2", "--batch", "2"]
    turns = ["--warmup", "1", "--blocks", "1", "--steps", "2"]
    contenders = ["--contenders", ",".join(CONTENDERS[:-1])]
    trace = ["--trace", str(path.parent / "traces")]
    done = _bench("bench.training", *case, *turns, *contenders, *trace, "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "samples/s" in done.stdout and "reducers-bf16" in done.stdout
    return path


@pytest.mark.long
def test_each_contender_trains_from_the_same_to_the_same(results: Path) -> None:
    [(case, lines)] = load([results])
    assert (case.workers, case.reducers, case.contenders) == (2, 2, CONTENDERS)
    assert tuple(line["contender"] for line in lines) == CONTENDERS
    assert len({line["losses"][0] for line in lines}) == 1
    by_name = {line["contender"]: line for line in lines}
    # a + b equals b + a, so with two ranks gloo and the reducers give the same bits.
    digests = {name: line["parameters_sha256"] for name, line in by_name.items()}
    assert digests["reducers"] == digests["gloo"]
    assert len({digests[name] for name in ("gloo", "reducers-bf16", COMPUTE)}) == 3
    assert by_name["reducers"]["largest_difference_from_gloo"] == 0
    assert 0 < by_name["reducers-bf16"]["largest_difference_from_gloo"] < 1e-2


@pytest.mark.long
def test_the_gradients_of_the_reducers_alone_went_through_reducers(results: Path) -> None:
    [(case, lines)] = load([results])
    for line in lines:
        sent = case.workers * len(line["losses"]) * line["gradient_bytes"]
        through = sent if line["contender"].startswith("reducers") else 0
        assert line["reduced_bytes"] == through, line["contender"]


@pytest.mark.long
def test_the_losses_fall_and_the_seconds_are_those_of_steps(results: Path) -> None:
    [(case, lines)] = load([results])
    for line in lines:
        assert len(line["losses"]) == case.warmup + case.blocks * case.steps
        assert [len(block) for block in line["seconds"]] == [case.steps] * case.blocks
        assert min(second for block in line["seconds"] for second in block) > 0
        if line["contender"] != COMPUTE:
            assert line["losses"][-1] < line["losses"][0]


@pytest.mark.long
def test_the_traces_show_the_rounds_of_each_contender_with_reducers(results: Path) -> None:
    for spans in read(results.parent / "traces"):
        rounds = spans.seconds("network")
        assert (rounds > 0) == spans.name.startswith("reducers"), spans.name
        assert rounds <= sum(end - begin for begin, end in spans.steps)


@pytest.mark.long
def test_the_report_reads_the_lines_again(results: Path) -> None:
    done = _bench("bench.training.report", str(results))
    assert done.returncode == 0, done.stderr
    assert "2 workers, 2 reducers, loopback" in done.stdout


CASE: dict[str, Any] = {
    "size": "10m",
    "workers": 8,
    "reducers": 8,
    "lanes": 1,
    "rate": "100mbit",
    "congestion": "cubic",
    "chunk": None,
    "credit": None,
    "batch": 2,
    "sequence": 32,
    "warmup": 1,
    "blocks": 3,
    "steps": 2,
    "contenders": ["gloo", "reducers", COMPUTE],
}


def _line(contender: str, *blocks: float) -> Line:
    return {
        "contender": contender,
        "busy": 0.5,
        "gradient_bytes": 40_000_000,
        "seconds": [[seconds - 0.1, seconds + 0.1] for seconds in blocks],
        "losses": [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0],
        "largest_difference_from_gloo": 0.0,
    }


LINES = [_line("gloo", 6.0, 6.4, 9.0), _line("reducers", 5.0, 4.0, 1.0), _line(COMPUTE, 1, 6, 2)]


def test_a_summary_is_made_of_medians_of_blocks() -> None:
    gloo, reducers = summarize(from_json(CASE), LINES)
    assert (gloo.name, reducers.name) == ("gloo", "reducers")
    assert reducers.step == pytest.approx(4.0)
    assert reducers.samples_per_second == pytest.approx(8 * 2 / 4.0)
    assert reducers.exposed == pytest.approx(2.0)
    assert reducers.efficiency == pytest.approx(0.5)
    assert (reducers.first_loss, reducers.loss) == (9.0, 3.5)
    assert reducers.speedup == pytest.approx(1.6)
    assert reducers.lowest_speedup == pytest.approx(1.2)
    assert reducers.highest_speedup == pytest.approx(9.0)


def test_passages_hide_some_words_and_differ_by_step_and_rank() -> None:
    passages = Passages(length=40, vocabulary=500, answers=100)
    batch = passages.batch(3, step=7, rank=1)
    assert (batch.tokens.shape, batch.places.shape, batch.words.shape) == ((3, 40), (3, 6), (18,))
    masks = batch.tokens.gather(1, batch.places)
    assert int((batch.tokens == masks[0, 0]).sum()) == 18
    assert {0}.union(range(2, 100)).issuperset(batch.words.tolist())
    assert int(batch.tokens.max()) < 500
    assert torch.equal(passages.batch(3, 7, 1).tokens, batch.tokens)
    assert not torch.equal(passages.batch(3, 8, 1).tokens, batch.tokens)
    assert not torch.equal(passages.batch(3, 7, 0).tokens, batch.tokens)
    with pytest.raises(ValueError, match=r"passages of 10000000 tokens: the text has"):
        Passages(10_000_000, 500, 100)


def test_a_step_lasts_until_the_slowest_rank_has_ended_it() -> None:
    ranks = [{"began": 1.0, "ended": [2.0, 5.0]}, {"began": 1.5, "ended": [3.0, 4.0]}]
    assert step_seconds(ranks) == [1.5, 2.0]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.training.plot import draw

    draw([(from_json(CASE), LINES)], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def _outcome(name: str, *, losses: float = 5.0, digests: tuple[str, ...] = ("a", "a")) -> Outcome:
    return Outcome(name, [[1.0, 1.0]], [9.0, losses, losses], list(digests))


def test_ranks_that_differ_void_the_run() -> None:
    computed = _outcome(COMPUTE, digests=("a", "b"))
    check_outcomes([_outcome("gloo"), _outcome("reducers"), computed])
    with pytest.raises(TrainingError, match="reducers: the ranks ended with 2 different sets"):
        check_outcomes([_outcome("gloo"), _outcome("reducers", digests=("a", "b")), computed])


def test_a_loss_that_is_not_gloos_voids_the_run() -> None:
    check_outcomes([_outcome("gloo"), _outcome("reducers-bf16", losses=5.1)])
    with pytest.raises(TrainingError, match=r"reducers: ended with a loss of 5\.1000, gloo with"):
        check_outcomes([_outcome("gloo"), _outcome("reducers", losses=5.1)])
    with pytest.raises(TrainingError, match="at most 1% apart"):
        check_outcomes([_outcome("gloo"), _outcome("reducers", losses=float("nan"))])


def test_contenders_are_kinds_with_a_size_of_buckets() -> None:
    contender = parse_contender("reducers-bf16@2.5")
    assert (contender.kind, contender.bucket_mib) == ("reducers-bf16", 2.5)
    assert contender.uses_reducers and not contender.is_exact
    for name in ("mpi", "gloo@", "gloo@x", "gloo@1.2.3", "GLOO"):
        with pytest.raises(ValueError, match=f"contender '{name}': expected one of gloo, gloo-bf"):
            parse_contender(name)
    done = _bench("bench.training", "--loopback", "--contenders", "gloo,mpi")
    assert done.returncode == 2 and "contender 'mpi': expected one of" in done.stderr


@pytest.mark.parametrize(
    ("device", "contenders", "device_ms", "text"),
    [
        ("cuda", ["gloo"], 1.0, "leave it out with --device cuda"),
        ("cpu", ["gloo", "nccl@2"], 0.0, "contender nccl: expected --device cuda"),
        pytest.param(
            *("cuda", ["gloo"], 0.0, "finds no CUDA device"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(
    device: str, contenders: list[str], device_ms: float, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        devices.check(device, contenders, device_ms)
    devices.check("cpu", ["gloo", "reducers"], 0.0)


def test_a_case_survives_json() -> None:
    case = from_json(CASE)
    assert isinstance(case, Case)
    assert from_json(json.loads(json.dumps(case.as_json()))) == case
