"""``DiLoCo`` and ``LocalSGD`` over real reducers, with ranks as processes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from reducer_client import Group
from reducer_client.errors import MismatchError, NumericError
from tests.support.frameworks import needs_extra
from tests.support.ranks import join, run_ranks

pytestmark = needs_extra("torch")

if TYPE_CHECKING:
    from reducer_client.torch import DiLoCo

STREAMED: dict[str, Any] = {"every": 6, "fragments": 3, "delay": 1, "keep_local": 0.5}


def make(group: Group, seed: int = 0, **options: Any) -> tuple[Any, DiLoCo]:
    """A net and its optimizer: Adam inside, with a schedule of its learning rate."""
    import torch

    from reducer_client.torch import DiLoCo
    from tests.support.local_steps import net

    model = net(seed, norm=options.pop("norm", False))
    return model, DiLoCo(model, torch.optim.Adam(model.parameters(), 0.01), group, **options)


def train(model: Any, opt: DiLoCo, rank: int, steps: range) -> None:
    from tests.support.local_steps import backward

    for number in steps:
        backward(model, rank, number)
        opt.step()


def outer_state(opt: DiLoCo, part: str = "outer") -> dict[str, bytes]:
    state = opt.state_dict()["outer"][part]
    return {name: value.numpy().tobytes() for name, value in state.items()}


# --- one rank: what an outer step does ------------------------------------------------------------


def bowl(group: Group, **options: Any) -> tuple[Any, DiLoCo]:
    """Two weights, one in each fragment, and SGD of rate 1/4 on the loss Σ w²: w halves."""
    import torch

    from reducer_client.torch import DiLoCo

    model = torch.nn.Module()
    for name in "ab":
        setattr(model, name, torch.nn.Parameter(torch.tensor([4.0])))
    return model, DiLoCo(model, torch.optim.SGD(model.parameters(), 0.25), group, **options)


def descend(model: Any, opt: DiLoCo) -> list[float]:
    opt.zero_grad()
    (model.a**2 + model.b**2).backward()
    opt.step()
    return [model.a.item(), model.b.item()]


def test_an_outer_step_goes_down(solo: Group) -> None:
    """A wrong sign of the pseudo-gradient climbs."""
    from reducer_client.torch import OuterSGD

    model, opt = bowl(solo, every=2, outer=OuterSGD(0.5, 0.5))
    assert descend(model, opt) == [2.0, 2.0]
    # start 4, local 1: Δ = 3, velocity 3, and 4 - 0.5 · (3 + 0.5 · 3)
    assert descend(model, opt) == [1.75, 1.75]
    descend(model, opt)
    # local 0.4375: Δ = 1.3125, velocity 2.8125, and 1.75 - 0.5 · (1.3125 + 0.5 · 2.8125)
    assert descend(model, opt) == [0.390625, 0.390625]


def test_an_exchange_leaves_the_state_of_other_fragments_alone(solo: Group) -> None:
    model, opt = bowl(solo, every=4, fragments=2)
    velocities = []
    for _ in range(4):
        descend(model, opt)
        velocities.append(outer_state(opt, "velocity"))
    zero = np.zeros(1, np.float32).tobytes()
    assert velocities[0] == {"a": zero, "b": zero}
    assert velocities[1]["a"] == zero != velocities[1]["b"]  # b's turn is after step 2
    assert velocities[3]["b"] == velocities[1]["b"] and velocities[3]["a"] != zero


def test_a_merge_after_a_delay_keeps_a_share_of_the_steps(solo: Group) -> None:
    from reducer_client.torch import OuterSGD

    model, opt = bowl(solo, every=2, delay=1, keep_local=0.25, outer=OuterSGD(1.0, 0.0))
    assert [descend(model, opt)[0] for _ in range(2)] == [2.0, 1.0]
    assert opt.in_flight == [0]
    # sent at 1: the outer value becomes 1, and the local value is 0.5 a step later
    assert descend(model, opt)[0] == 0.25 * 0.5 + 0.75 * 1.0
    assert opt.in_flight == []


@pytest.mark.parametrize(("wire_dtype", "sent"), [(None, 2.0625), ("e3m0", 1.5)])
def test_pseudo_gradients_are_sent_in_the_wire_dtype(
    solo: Group, wire_dtype: Any, sent: float
) -> None:
    """Pseudo-gradients of 3 and 2.0625. e3m0 knows 3, 1.5, 0.75, ... in a block with these two."""
    import torch

    from reducer_client.torch import DiLoCo, OuterSGD

    weights = torch.nn.Parameter(torch.tensor([4.0, 2.75]))
    model = torch.nn.ParameterList([weights])
    sgd = torch.optim.SGD([weights], 0.25)
    opt = DiLoCo(model, sgd, solo, every=2, outer=OuterSGD(1.0, 0.0), wire_dtype=wire_dtype)
    for _ in range(2):
        opt.zero_grad()
        (weights**2).sum().backward()
        opt.step()
    assert weights.tolist() == [4.0 - 3.0, 2.75 - sent]


def test_keeping_all_is_training_alone(solo: Group) -> None:
    model, opt = bowl(solo, every=2, keep_local=1.0)
    assert [descend(model, opt)[0] for _ in range(3)] == [2.0, 1.0, 0.5]


def test_narrow_parameters_have_wide_outer_values(solo: Group) -> None:
    """A rank that makes no steps has no pseudo-gradient, though its values are rounded."""
    import torch

    from reducer_client.torch import DiLoCo, OuterSGD

    model = torch.nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
    sgd = torch.optim.SGD(model.parameters(), 0.0)
    opt = DiLoCo(model, sgd, solo, every=1, outer=OuterSGD(0.3, 0.0))
    model.weight.data[0, 0] += 0.125
    model.weight.grad = torch.zeros_like(model.weight)
    opt.step()
    before = opt.state_dict()["outer"]["outer"]["weight"]
    assert before.dtype is torch.float32
    assert not torch.equal(before, model.weight.float())  # between two values of bfloat16
    opt.step()
    assert torch.equal(opt.state_dict()["outer"]["outer"]["weight"], before)


# --- several ranks --------------------------------------------------------------------------------


def _agree(rank: int, world: int, addresses: list[str], job: str) -> Any:
    """Trains blocking and streamed, from other first values; all is equal after an exchange."""
    from tests.support.local_steps import backward, fingerprint

    with join(rank, world, addresses, job) as group:
        model, opt = make(group, rank, every=4, norm=True, average_buffers=True)
        prints = [fingerprint(model)]
        for number in range(8):
            backward(model, rank, number)
            opt.step()
            prints.append(fingerprint(model, buffers=True))
        opt.check()
        model, opt = make(group, rank, **STREAMED)
        train(model, opt, rank, range(15))
        streamed = [fingerprint(model), outer_state(opt), outer_state(opt, "velocity")]
        opt.finish()
        return prints, streamed, fingerprint(model)


def test_ranks_are_equal_after_each_exchange(addresses: list[str], job: str) -> None:
    first, second, _ = run_ranks(3, _agree, addresses, job)
    prints, others = first[0], second[0]
    equal = [at for at, (one, other) in enumerate(zip(prints, others, strict=True)) if one == other]
    assert equal == [0, 4, 8]  # buffers, too
    assert first[1][0] != second[1][0]
    assert first[1][1:] == second[1][1:]
    assert first[2] == second[2]


def _average(rank: int, world: int, addresses: list[str], job: str) -> Any:
    import torch

    from reducer_client.torch import LocalSGD
    from tests.support.local_steps import backward, net

    with join(rank, world, addresses, job) as group:
        model, twins = net(), [net() for _ in range(world)]
        opt = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), group, every=3)
        train(model, opt, rank, range(3))
        for each, twin in enumerate(twins):
            sgd = torch.optim.SGD(twin.parameters(), 0.1)
            for number in range(3):
                backward(twin, each, number)
                sgd.step()
        mean = [sum(ps) / world for ps in zip(*(t.parameters() for t in twins), strict=True)]
        for parameter, expected in zip(model.parameters(), mean, strict=True):
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)


def test_local_sgd_averages_parameters(addresses: list[str], job: str) -> None:
    run_ranks(2, _average, addresses, job)


def _resume(rank: int, world: int, addresses: list[str], job: str, stop: int) -> None:
    """A run that was saved after ``stop`` steps goes on with the bits of one that was not."""
    from tests.support.local_steps import fingerprint

    with join(rank, world, addresses, job) as group:
        model, opt = make(group, **STREAMED)
        train(model, opt, rank, range(stop))
        saved = pickle.dumps([model.state_dict(), opt.state_dict()])
        train(model, opt, rank, range(stop, 20))
        again, resumed = make(group, seed=5 + rank, **STREAMED)
        for each, state in zip((again, resumed), pickle.loads(saved), strict=True):
            each.load_state_dict(state)
        assert resumed.steps == stop
        train(again, resumed, rank, range(stop, 20))
        assert fingerprint(again) == fingerprint(model)
        assert pickle.dumps(outer_state(resumed)) == pickle.dumps(outer_state(opt))


@pytest.mark.parametrize("stop", [9, 10])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(
    addresses: list[str], job: str, stop: int
) -> None:
    """After step 10 a fragment is in flight."""
    run_ranks(2, _resume, addresses, job, stop)


def _half_a_checkpoint(rank: int, world: int, addresses: list[str], job: str) -> str:
    with join(rank, world, addresses, job) as group:
        model, opt = make(group, every=2)
        train(model, opt, rank, range(2))
        state = opt.state_dict()
        model, opt = make(group, every=2)
        if rank == 1:
            opt.load_state_dict(state)
        with pytest.raises(MismatchError) as raised:
            train(model, opt, rank, range(2))
        with pytest.raises(MismatchError, match="rank 1 has other settings or parameters"):
            make(group, every=2 + rank)
        return str(raised.value)


def test_ranks_with_other_states_are_refused_by_name(addresses: list[str], job: str) -> None:
    texts = run_ranks(2, _half_a_checkpoint, addresses, job)
    assert texts[0] == texts[1]
    assert "rank 1 has another outer state than rank 0" in texts[0]


def _diverge(rank: int, world: int, addresses: list[str], job: str) -> None:
    import torch

    with join(rank, world, addresses, job) as group:
        model, opt = make(group, every=2)
        before = outer_state(opt)
        if rank == 1:
            with torch.no_grad():
                model[0].weight[0, 0] = float("nan")
        with pytest.raises(NumericError, match="rank 1 sent NaN or Inf as 'diloco0/fragment0'"):
            train(model, opt, rank, range(2))
        assert outer_state(opt) == before and not opt.in_flight


def test_a_rank_that_diverges_is_named(addresses: list[str], job: str) -> None:
    run_ranks(2, _diverge, addresses, job)


# --- as an optimizer of torch ---------------------------------------------------------------------


def test_a_gradient_scaler_skips_the_inner_step_only(solo: Group) -> None:
    import torch

    model, opt = bowl(solo, every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, float("inf")):
        opt.zero_grad()
        scaler.scale((model.a**2 + model.b**2) * factor).backward()
        scaler.step(opt)
        scaler.update()
    assert opt.steps == 2
    assert model.a.item() == pytest.approx(4 - 0.7 * (2 + 0.9 * 2))  # local 2: Δ = 2


def test_schedules_and_closures_reach_the_inner_optimizer(solo: Group) -> None:
    import torch

    model, opt = bowl(solo, every=100)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)

    def closure() -> Any:
        opt.zero_grad()
        loss = model.a**2 + model.b**2
        loss.backward()
        return loss

    assert opt.step(closure).item() == 32.0
    schedule.step()
    assert opt.optimizer.param_groups[0]["lr"] == 0.125
    opt.optimizer.load_state_dict(opt.optimizer.state_dict())
    schedule.step()
    opt.step(closure)
    schedule.step()
    assert opt.optimizer.param_groups[0]["lr"] == opt.param_groups[0]["lr"]


def test_what_cannot_work_is_refused(solo: Group) -> None:
    import torch

    from reducer_client.torch import DiLoCo

    model, opt = bowl(solo, every=2)
    sgd = opt.optimizer
    with pytest.raises(ValueError, match="fragments=3: expected 1 to 2"):
        DiLoCo(model, sgd, solo, every=2, fragments=3)
    with pytest.raises(ValueError, match="wire_dtype='int3'"):
        DiLoCo(model, sgd, solo, every=2, wire_dtype="int3")
    with pytest.raises(ValueError, match="add_param_group: the fragments are fixed"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match="group=None: expected a Group"):
        DiLoCo(model, sgd, None, every=2)
    with pytest.raises(TypeError, match=r"optimizer: expected a torch.optim.Optimizer, got dict"):
        DiLoCo(model, {}, solo, every=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected that of a DiLoCo, with the outer parameters"):
        opt.load_state_dict(sgd.state_dict())
    late = torch.nn.Parameter(torch.ones(1))
    model.c = late
    with pytest.raises(ValueError, match=r"lacks 1 of the model's parameters.*'c'"):
        DiLoCo(model, sgd, solo, every=2)
    descend(model, opt)
    with pytest.raises(RuntimeError, match="parameter 'c' requires a gradient, and was not there"):
        descend(model, opt)
    whole = torch.nn.Module()
    whole.n = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter 'n': expected float32.*complex64"):
        DiLoCo(whole, torch.optim.SGD(whole.parameters(), 1.0), solo, every=2)
    stranger = torch.optim.SGD([*bowl(solo, every=2)[0].parameters()], 1.0)
    del model.c
    with pytest.raises(ValueError, match="lacks 2 of the model's parameters"):
        DiLoCo(model, stranger, solo, every=2)
