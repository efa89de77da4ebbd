"""DDP with a quantised wire: the hook's residuals, in every bucket layout and in a checkpoint."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reducer_client import Group
from reducer_client.torch import ReductionState, attach
from tests.support.ranks import run_ranks
from tests.support.torch_ranks import gloo_and_group

STEPS = 12
LAYERS = (nn.Linear(64, 700), nn.Linear(700, 64))  # several buckets of 0.1 MiB


def _model() -> DistributedDataParallel:
    torch.manual_seed(1)
    made = nn.Sequential(*(nn.Linear(layer.in_features, layer.out_features) for layer in LAYERS))
    return DistributedDataParallel(made, bucket_cap_mb=0.1)


def _gradients(model: nn.Module, rank: int, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + rank)
    model.zero_grad()
    model(torch.randn(8, 64, generator=generator)).square().mean().backward()


def _sums(rank: int, world: int, addresses: list[str], job: str, store: str) -> dict[str, float]:
    """The error of the sum of all gradients of STEPS steps, without an optimizer in between."""
    with gloo_and_group(rank, world, addresses, job, store) as group:
        errors = {}
        for name, feedback in (("off", False), ("on", True)):
            model, exact = _model(), _model()
            state = attach(model, group, wire_dtype="e3m0", error_feedback=feedback)
            totals = [torch.zeros(2, *p.shape) for p in model.parameters()]
            for step in range(STEPS):
                for which, each in enumerate((model, exact)):
                    _gradients(each, rank, step)
                    for total, parameter in zip(totals, each.parameters(), strict=True):
                        assert parameter.grad is not None
                        total[which] += parameter.grad
                if step == STEPS // 2:
                    state = _reloaded(state, model)
            lost = sum((total[0] - total[1]).square().sum() for total in totals)
            errors[name] = float(lost / sum(total[1].square().sum() for total in totals)) ** 0.5
            kept = state.state_dict()["residuals"]
            if feedback:
                assert set(kept) == {name for name, _ in model.module.named_parameters()}
                assert all(bool(part.any()) for part in kept.values())
            else:
                assert kept == {}
            count = sum(p.numel() for p in model.parameters())
            assert state.bytes_on_wire == pytest.approx(STEPS * count * (132 / 256 + 2), rel=0.01)
            assert state.narrowing.error is not None and 0.05 < state.narrowing.error < 0.4
        return errors


def _reloaded(state: ReductionState, model: DistributedDataParallel) -> ReductionState:
    """As after a restart from a checkpoint."""
    buffer = io.BytesIO()
    torch.save(state.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    if state.feedback is not None:
        state.feedback.load_state_dict({})  # what was kept is lost
    state.load_state_dict(saved)
    return state


def test_error_feedback_makes_up_for_rounding_in_later_steps(
    addresses: list[str], job: str, tmp_path: Any
) -> None:
    for errors in run_ranks(2, _sums, addresses, job, str(tmp_path / "store")):
        assert errors["on"] < errors["off"] / 2, errors


def test_error_feedback_needs_a_quantised_wire(solo: Group) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="expected a quantised one, such as 'int8'"):
        ReductionState(solo, wire_dtype="bfloat16", error_feedback=model)
    with pytest.raises(ValueError, match="wire_dtype='int4': expected one of float32, float16"):
        ReductionState(solo, wire_dtype="int4")  # type: ignore[arg-type]
    state = ReductionState(solo, wire_dtype="int8")
    with pytest.raises(ValueError, match="expected a state with error_feedback"):
        state.load_state_dict({"residuals": {"weight": torch.zeros(9)}})
    assert state.narrowing.error is None
    bucket = torch.linspace(-1, 1, 300)
    state.submit(bucket, 0, lambda work: None).wait()
    expected = np.abs(bucket.numpy() - np.linspace(-1, 1, 300, dtype=np.float32)).max()
    assert expected < 0.01
    assert state.narrowing.error is not None and 0 < state.narrowing.error < 0.01
    double = torch.ones(3, dtype=torch.float64)
    state.submit(double, 1, lambda work: None).wait()  # is sent as it is
