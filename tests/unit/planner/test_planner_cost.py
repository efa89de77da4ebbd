"""Steps, costs and break-even prices of the planner, and what it draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer_tools.planner import cost
from reducer_tools.planner.plan import Cluster, Prices, Step, make_plan
from tests.support.planner import plan, planned

EIGHT = ("--workers", "8", "--worker-gbps", "100", "--reducer-gbps", "32")
PRICES = ("--worker-price", "30", "--reducer-price", "0.6")
HOSTS = st.tuples(
    st.integers(1, 200), st.floats(0.1, 400), st.integers(1, 400), st.floats(0.1, 400)
)
SECONDS = st.floats(0, 10)
PARTS = st.floats(0, 1)


@given(SECONDS, SECONDS, PARTS)
def test_a_measured_step_gives_back_its_computation(
    compute: float, ring: float, overlap: float
) -> None:
    step = cost.step_seconds(compute, ring, overlap)
    found = cost.compute_seconds(step, ring, overlap)
    assert cost.step_seconds(found, ring, overlap) == pytest.approx(step)
    if overlap < 0.99:
        assert found == pytest.approx(compute, abs=1e-6)


def test_overlap_hides_what_fits() -> None:
    assert cost.step_seconds(1.0, 0.4, 0.0) == pytest.approx(1.4)
    assert cost.step_seconds(1.0, 0.4, 0.25) == pytest.approx(1.15)
    assert cost.step_seconds(1.0, 0.4, 0.5) == 1.0


@given(HOSTS, SECONDS, PARTS, st.floats(0.01, 100))
def test_at_the_break_even_price_both_cost_the_same(
    hosts: tuple[int, float, int, float], compute: float, overlap: float, price: float
) -> None:
    workers, ours, reducers, theirs = hosts
    step = Step(compute, overlap)
    found = Cluster(workers, ours, theirs, 1 << 26, step, Prices(price, 1.0)).choice(reducers)
    assert found.break_even_ratio is not None
    even = max(0.0, found.break_even_ratio) * price  # rounding of equal times may be below 0
    same = Cluster(workers, ours, theirs, 1 << 26, step, Prices(price, even))
    assert same.choice(reducers).cost_per_step == pytest.approx(same.ring_cost())


def test_the_share_of_time_that_must_be_saved() -> None:
    """optcast, docs/efa.md: a node of 32 and two reducers of 4 must save 20 % of the time."""
    assert cost.break_even_ratio(1, 2, ring_step=1.0, step=0.8) * 32 == pytest.approx(4)


def test_a_step_its_cost_and_the_cheapest() -> None:
    found = planned(*EIGHT, *PRICES, "--parameters", "340M", "--step", "250ms")
    assert found["gradient_bytes"] == 340_000_000 * 4
    assert found["ring_step_seconds"] == pytest.approx(0.25)
    assert found["compute_seconds"] == pytest.approx(0.25 - found["ring_seconds"])
    step = found["compute_seconds"] + found["allreduce_seconds"]
    assert found["step_seconds"] == pytest.approx(step)
    assert found["cost_per_step"] == pytest.approx((8 * 30 + 25 * 0.6) * step / 3600)
    assert found["ring_cost_per_step"] == pytest.approx(8 * 30 * 0.25 / 3600)
    assert found["break_even_price"] == pytest.approx(8 * 30 * (0.25 / step - 1) / 25)
    costs = {c["reducers"]: c["cost_per_step"] for c in found["choices"]}
    assert found["cheapest_reducers"] == min(costs, key=lambda count: costs[count]) == 25


def test_reducers_that_are_dear_do_not_pay_off() -> None:
    dear = (*EIGHT, "--compute", "1s", "--worker-price", "30", "--reducer-price", "9")
    found = planned(*dear)
    assert found["winner"] == "reducers" and found["cheapest_reducers"] == 0
    assert found["cost_per_step"] > found["ring_cost_per_step"]
    assert "At these prices a step costs least with hosted reducers alone." in found["verdict"]


def test_hosted_reducers_alone_cost_as_much_as_a_ring() -> None:
    found = planned(*EIGHT, *PRICES, "--step", "250ms", "--reducers", "0")
    assert found["cost_per_step"] == pytest.approx(found["ring_cost_per_step"])
    assert found["cost_per_step"] == pytest.approx(8 * 30 * 0.25 / 3600)
    assert found["break_even_ratio"] is None and found["break_even_price"] is None
    assert not any("pay" in sentence for sentence in found["verdict"])
    assert found["verdict"][-1] == "At these prices a step costs least with 25 dedicated reducers."


def test_nothing_is_cheapest_if_the_price_of_a_reducer_is_unknown() -> None:
    options = (*EIGHT, "--compute", "1s", "--worker-price", "30", "--reducers", "0")
    found = planned(*options)
    assert found["cost_per_step"] is not None and found["cheapest_reducers"] is None
    assert "a step costs least" not in " ".join(found["verdict"])
    *_, table = plan(*options).output.split("\n\n")
    assert "all-reduce" in table and "1,000" not in table


def test_without_a_step_the_price_is_a_bound() -> None:
    found = planned(*EIGHT, *PRICES)
    assert found["compute_seconds"] is None and found["cost_per_step"] is None
    assert found["break_even_ratio"] == pytest.approx(8 / 25 * 0.75)
    assert "if a step is only its all-reduce" in " ".join(found["verdict"])


def test_a_type_halves_the_bytes() -> None:
    size = planned(*EIGHT, "--parameters", "7B", "--dtype", "bfloat16")["gradient_bytes"]
    assert size == 14_000_000_000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--step", "1ms"), "step: expected at least the 0.0614 s that a ring needs, got 0.001 s"),
        (("--step", "1", "--compute", "1"), "step, compute: expected one of them, got both"),
        (("--step", "soon"), "expected a time such as"),
        (("--compute", "1", "--overlap", "2"), "overlap: expected a number from 0 to 1, got 2"),
        (("--step", "1", "--overlap", "nan"), "overlap: expected a number from 0 to 1, got nan"),
        (("--overlap", "0.5"), "overlap: expected only with --step or --compute, got 0.5"),
        (("--dtype", "bfloat16"), "dtype: expected only with --parameters, got bfloat16"),
        (("--worker-price", "-1"), "worker-price: expected a price for an hour, 0 or more, got -1"),
        (("--parameters", "big"), "expected a number such as 340M or 7B; got 'big'"),
        (("--parameters", "1M", "--gradient-bytes", "4M"), "expected one of them, got both"),
        (("--workers", "9" * 5000), "--workers"),
        (("--workers", str(10**400)), "workers: expected at most 1,000,000, got more than 1e300"),
        (("--reducers", str(10**19)), "reducers: expected at most"),
        (("--gradient-bytes", "9" * 400), "expected 1 byte or more, such as"),
        (("--worker-gbps", "1e-300"), "worker_gbps: expected a number from 1e-12"),
        (("--spec", "/nowhere.json"), "No such file"),
    ],
)
def test_bad_values_are_named(options: tuple[str, ...], text: str) -> None:
    result = plan(*EIGHT, *options)
    assert result.exit_code == 2, result.exception
    assert text in result.output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "workers: expected --workers or --spec, got none"),
        (("--workers", "4"), "worker-gbps: expected --worker-gbps, --worker-machine or --spec"),
        (
            ("--workers", "4", "--worker-machine", "n1-highcpu-61", "--reducer-gbps", "1"),
            "--worker-machine: expected a machine of the table (n1-highcpu-16, ",
        ),
    ],
)
def test_what_is_missing_is_named(options: tuple[str, ...], text: str) -> None:
    result = plan(*options)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_machines_of_the_table() -> None:
    machines = ("--worker-machine", "a2-megagpu-16g", "--reducer-machine", "n1-highcpu-16")
    assert planned("--workers", "8", *machines)["reducers"] == 25


def test_the_table_that_is_shown_is_the_one_that_is_read(tmp_path: Path) -> None:
    shown = plan("--show-machines").output
    assert "[n1-highcpu-16]\ngbps = 32\n" in shown
    path = tmp_path / "machines.toml"
    path.write_text(shown.replace("gbps = 32\n", "gbps = 50\nprice = 0.8\n"))
    machines = ("--worker-machine", "a2-megagpu-16g", "--reducer-machine", "n1-highcpu-16")
    found = planned("--workers", "8", *machines, "--machines", str(path))
    assert (found["reducers"], found["reducer_price"]) == (16, 0.8)


def test_a_plan_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    result = plan(*EIGHT, *PRICES, "--step", "250ms", "--plot", str(path))
    assert result.exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
    bad = plan(*EIGHT, "--plot", str(tmp_path / "nowhere" / "plan.png"))
    assert bad.exit_code == 1 and "--plot: " in bad.output


@pytest.mark.parametrize("workers", [1, 2, 3, 1000])
def test_the_picture_says_what_the_plan_says(workers: int) -> None:
    found = make_plan(Cluster(workers, 10, 3, 1 << 26, Step(0.1), Prices(3.0, 0.1)))
    from reducer_tools.planner.figure import draw  # a second to import, in each runner of tests

    times, prices = draw(found).axes
    lines = {str(line.get_label()): line for line in times.get_lines()}
    both, alone = (
        dict(zip(lines[label].get_xdata(), lines[label].get_ydata(), strict=True))
        for label in ("with hosted reducers", "dedicated reducers alone")
    )
    assert {0, found.needed} <= set(both) and set(alone) == set(both) - {0}
    ring = lines[next(label for label in lines if label.startswith("ring: "))].get_ydata()[0]
    assert both[0] == pytest.approx(ring) and max(both.values()) <= ring * (1 + 1e-9)
    faster = [count for count, height in alone.items() if height < ring * (1 - 1e-9)]
    if found.to_beat_ring is None:
        assert not faster
    else:
        assert faster and min(faster) >= found.to_beat_ring
        assert both[1] < ring < alone[1]
    low, high = prices.get_ylim()
    assert low == 0 and high > 0


def test_only_a_picture_needs_matplotlib() -> None:
    program = (
        "import sys; sys.modules.update({'matplotlib': None, 'yaml': None})\n"
        "from reducer_tools.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, "plan", *EIGHT]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout
    drawn = subprocess.run([*command, "--plot", "a.png"], capture_output=True, text=True)
    assert drawn.returncode == 1
    assert (
        "matplotlib: pip install '.[plot]' in a checkout, or pip install 'WHEEL[plot]'"
        in drawn.stderr
    )
