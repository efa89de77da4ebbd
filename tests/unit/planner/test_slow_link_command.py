"""`reducer plan --link`: what it prints, and the options that it takes and refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reducer_tools.cli.sizes import parse_gbps, parse_share
from tests.support.planner import plan, planned

SIZING = Path(__file__).parents[3] / "docs" / "sizing.md"
LINK = ("--link", "200mbit", "--rtt", "30ms")
MODEL = (*LINK, "--params", "1.1b")
STEP = (*MODEL, "--step", "1.2s")


def sections(*arguments: str) -> list[list[str]]:
    result = plan(*arguments)
    assert result.exit_code == 0, result.output
    return [part.splitlines() for part in result.output.split("\n\n")]


def test_the_documented_example_is_what_the_command_prints() -> None:
    found = re.search(r"^\$ reducer plan (--link.*)\n((?:.*\n)*?)```$", SIZING.read_text(), re.M)
    assert found is not None
    printed = plan(*found[1].split()).output
    assert printed.startswith(found[2])
    assert printed.removeprefix(found[2]).startswith("\nAssumptions:\n- A worker is all machines")


def test_the_table_begins_with_the_chosen_method_and_fits() -> None:
    facts, verdict, code, table, assumptions = sections(*STEP)
    assert all(len(line) <= 80 for part in (facts, verdict, code, table) for line in part)
    assert facts[0] == "link of a worker  200 Mbit/s each way, RTT 30.0 ms"
    assert facts[-1].split(None, 1) == ["method", "Streaming DiLoCo (e3m0, bf16 down)"]
    assert table[1].split()[:7] == ["Streaming", "DiLoCo", "e3m0,", "bf16", "down", "100", "16"]
    assert [row.split()[0] for row in table[2:-1]] == ["data"] * 4 + ["DiLoCo"] * 3 + [
        "Streaming"
    ] * 2
    assert [row.endswith(" *") for row in table[1:-1]] == [True, *[False] * 5, *[True] * 4]
    assert " ".join(code) == (
        "In code: DiLoCo(model, optimizer, group, every=100, fragments=16, delay=5,   "
        'keep_local=0.5, outer=OuterSGD(lr=0.4), wire_dtype="e3m0")'
    )
    assert assumptions[0] == "Assumptions:"


def test_json_has_all_methods_and_why() -> None:
    found = planned(*STEP, "--workers", "4")
    assert (found["link_gbps"], found["rtt_seconds"], found["workers"]) == (0.2, 0.03, 4)
    assert (found["gradient_bytes"], found["busy_wanted"]) == (4_400_000_000, 0.95)
    (step,) = found["steps"]
    assert step["enough"] and step["chosen"] in step["methods"] and len(step["methods"]) == 10
    first = step["methods"][0]
    assert (first["method"], first["wire"], first["code"]) == (
        "data parallel",
        "float32",
        "attach(model, group)",
    )
    assert first["transfer_seconds"] == pytest.approx(183.92)
    assert first["busy"] == pytest.approx(1.2 / 184.35)
    assert step["verdict"] and found["assumptions"]


def test_without_the_time_of_a_step_there_is_an_answer_for_several() -> None:
    facts, hint, table, _ = sections(*MODEL)
    assert len(facts) == 4 and "--tokens and --tflops" in " ".join(hint)
    assert all(len(line) <= 80 for line in (*facts, *hint, *table))
    assert [row[:6].strip() for row in table[1:-1]] == [
        "300 ms",
        "1.00 s",
        "3.00 s",
        "10.0 s",
        "30.0 s",
    ]
    seconds = [step["compute_seconds"] for step in planned(*MODEL)["steps"]]
    assert seconds == [0.3, 1, 3, 10, 30]


def test_tokens_and_tflops_give_the_time_of_a_step() -> None:
    """6 x 1.1e9 x 20,000 / 110e12 = 1.2 s."""
    found = planned(*MODEL, "--tokens", "20k", "--tflops", "110")
    assert found["steps"][0]["compute_seconds"] == pytest.approx(1.2)
    assert found["steps"][0]["chosen"] == planned(*STEP)["steps"][0]["chosen"]


def test_busy_and_overlap_are_as_asked() -> None:
    """13 MiB in float32 pass 200 Mbit/s in 0.57 s. A half of the step does not hide them."""
    size = (*LINK, "--gradient-bytes", "13M", "--compute", "1s")
    whole, half = planned(*size), planned(*size, "--overlap", "0.5")
    assert (half["gradient_bytes"], half["overlap"]) == (13 << 20, 0.5)
    assert whole["overlap"] == pytest.approx(2 / 3)
    chosen = [found["steps"][0]["chosen"]["wire"] for found in (whole, half)]
    assert chosen == ["float32", "bfloat16"]
    assert planned(*STEP, "--busy", "75%")["steps"][0]["chosen"]["every"] == 100


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ((), "dedicated, as fast as all workers together"),
        (("--workers", "4"), "dedicated, 800 Mbit/s together each way"),
        (("--workers", "4", "--reducers", "0"), "hosted by the 4 workers"),
        (
            ("--workers", "4", "--reducers", "2", "--reducer-gbps", "1"),
            "2 dedicated at 1 Gbit/s; hosted ones sum the rest",
        ),
    ],
)
def test_the_reducers_are_named(workers: tuple[str, ...], text: str) -> None:
    assert sections(*STEP, *workers)[0][1] == f"reducers          {text}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--link", "200"), "expected a rate such as 200mbit, 1gbit or 2.5Gbit/s; got '200'"),
        (("--link", "200MBps"), "expected a rate such as"),
        (("--link", "0mbit"), "expected a rate such as"),
        (LINK, "parameters: expected --params or --gradient-bytes, got none"),
        ((*MODEL, "--gradient-bytes", "1G"), "expected --params or --gradient-bytes, got both"),
        ((*STEP, "--compute", "1s"), "step, compute: expected one of them, got both"),
        ((*STEP, "--tokens", "1M"), "tokens, tflops: expected only without --step and --compute"),
        ((*MODEL, "--tokens", "1M"), "tflops: expected --tokens and --tflops together"),
        ((*MODEL, "--tflops", "100"), "tokens: expected --tokens and --tflops together"),
        ((*MODEL, "--step", "0s"), "step: expected a number above 0, got 0"),
        ((*STEP, "--busy", "100%"), "busy: expected a part above 0 and below 100 %, got 100 %"),
        ((*STEP, "--busy", "most"), "expected a part such as 95% or 0.95; got 'most'"),
        ((*STEP, "--overlap", "2"), "overlap: expected a number from 0 to 1, got 2"),
        ((*STEP, "--workers", "1"), "workers: expected a whole number, 2 or more, got 1"),
        ((*STEP, "--reducers", "2"), "reducers: expected --workers, too, got only 2"),
        (
            (*STEP, "--workers", "4", "--reducer-gbps", "1"),
            "reducer-gbps: expected only with --reducers of 1 or more, got 1",
        ),
        ((*STEP, "--worker-gbps", "1"), "worker-gbps: cannot be combined with --link: --link is"),
        ((*STEP, "--dtype", "bfloat16"), "dtype: cannot be combined with --link"),
        ((*STEP, "--plot", "plan.png"), "plot: cannot be combined with --link"),
        ((*STEP, "--lanes", "2"), "lanes: cannot be combined with --link"),
        (("--workers", "4", "--rtt", "30ms"), "rtt: expected only with --link"),
        (("--workers", "4", "--busy", "0.9"), "busy: expected only with --link"),
    ],
)
def test_options_that_contradict_are_named(options: tuple[str, ...], text: str) -> None:
    result = plan(*options)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("200mbit", 0.2), ("1 Gbit/s", 1), ("2.5gbps", 2.5), ("64kbit", 6.4e-5), ("100Mb/s", 0.1)],
)
def test_rates(text: str, gbps: float) -> None:
    assert parse_gbps(text) == pytest.approx(gbps)


def test_shares() -> None:
    assert parse_share("95%") == parse_share("95 %") == parse_share("0.95") == 0.95
