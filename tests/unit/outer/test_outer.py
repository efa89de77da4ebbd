"""The pure parts of local steps: fragments, schedule, outer optimizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reducer_client.outer.fragments import balance
from reducer_client.outer.optimizer import AVERAGE, OuterSGD, blend
from reducer_client.outer.schedule import Schedule


def test_equal_layers_are_strided_over_the_fragments() -> None:
    assert balance([8, 1] * 6, 3) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert balance([5], 1) == [[0]]
    assert balance([1, 0, 2], 2) == [[2], [0]]  # no elements, no exchange


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.data())
def test_fragments_are_balanced_and_none_is_empty(sizes: list[int], data: st.DataObject) -> None:
    filled = [place for place, size in enumerate(sizes) if size]
    count = data.draw(st.integers(1, max(1, len(filled))))
    found = balance(sizes, count)
    assert sorted(place for places in found for place in places) == filled
    totals = [sum(sizes[place] for place in places) for places in found]
    best = max([*sizes, -(-sum(sizes) // count)])  # no division is better than this
    assert max(totals) <= best * 2
    if filled:
        assert min(len(places) for places in found) > 0


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_of_fragments_that_does_not_fit_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"fragments={count}: expected 1 to 2, the number of"):
        balance([4, 0, 4], count)


def test_fragments_take_turns() -> None:
    schedule = Schedule(every=10, fragments=4, delay=2)
    sent = {step: schedule.sent_after(step) for step in range(1, 21) if schedule.sent_after(step)}
    assert sent == {2: [1], 5: [2], 7: [3], 10: [0], 12: [1], 15: [2], 17: [3], 20: [0]}
    assert not schedule.is_quiet_after_merges  # 2 steps lie between the turns of 0 and 1
    assert Schedule(every=10, fragments=4, delay=1).is_quiet_after_merges
    assert Schedule(every=2, fragments=4).sent_after(1) == [2, 3]
    assert Schedule(every=2, fragments=4).is_quiet_after_merges


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"every": 0}, ValueError, "every=0: expected 1 or more"),
        ({"every": 2.5}, TypeError, "every=2.5: expected an int, got float"),
        ({"every": True}, TypeError, "every=True: expected an int"),
        ({"every": 5, "delay": 5}, ValueError, "delay=5 with every=5: expected a smaller delay"),
        ({"every": 5, "delay": -1}, ValueError, "delay=-1: expected 0 or more"),
        ({"every": 5, "fragments": 0}, ValueError, "fragments=0: expected 1 or more"),
        ({"every": 5, "keep_local": 1.5}, ValueError, "keep_local=1.5: expected a number from 0"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(
    arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Schedule(**arguments)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"lr": float("nan")}, {"momentum": 1.0}])
def test_outer_optimizers_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"outer {next(iter(wrong))}="):
        OuterSGD(**wrong)


@pytest.mark.parametrize("outer", [OuterSGD(), OuterSGD(nesterov=False), AVERAGE])
def test_a_step_lowers_a_quadratic_bowl(outer: OuterSGD) -> None:
    """The pseudo-gradient of steps toward the bottom is a gradient: it must not climb."""
    start = np.array([3.0, -2.0], np.float32)
    local = start * np.float32(0.5)  # inner steps went halfway to the bottom
    values, velocity = start.copy(), np.zeros_like(start)
    outer.step(values, start - local, velocity)
    assert (values**2).sum() < (start**2).sum()


@pytest.mark.parametrize("outer", [OuterSGD(), OuterSGD(0.3, 0.5, nesterov=False), AVERAGE])
def test_steps_are_those_of_torchs_sgd(outer: OuterSGD) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = rng.standard_normal(97).astype(np.float32)
    velocity = np.zeros_like(values) if outer.momentum else None
    parameter = torch.nn.Parameter(torch.tensor(values))
    twin, twins_velocity = torch.tensor(values), torch.zeros(97)
    sgd = torch.optim.SGD([parameter], **dataclasses.asdict(outer))
    for _ in range(20):
        delta = rng.standard_normal(97).astype(np.float32)
        parameter.grad = torch.tensor(delta)
        sgd.step()
        outer.step(twin, torch.tensor(delta), twins_velocity)
        outer.step(values, delta, velocity)
    np.testing.assert_allclose(values, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)
    assert twin.numpy().tobytes() == values.tobytes()


def test_a_blend_keeps_a_share_of_the_local_values() -> None:
    assert blend(np.array([1.0]), np.array([3.0]), 0.25) == [2.5]
