"""Residuals of a quantised wire: of DDP's hook, in every bucket layout, and of Overlap."""

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
from reducer_client.torch import Overlap, ReductionState, attach
from tests.support.ranks import join, run_ranks
from tests.support.torch_ranks import gloo_and_group

STEPS = 12
LAYERS = (nn.Linear(64, 700), nn.Linear(700, 64))  # several buckets of 0.1 MiB
DOTS = (300, 5, 700)  # elements


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
                    _reload(state)
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


def _reload(state: ReductionState) -> None:
    """As after a restart from a checkpoint."""
    buffer = io.BytesIO()
    torch.save(state.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    if state.feedback is not None:
        state.feedback.load_state_dict({})  # what was kept is lost
    state.load_state_dict(saved)
    now, then = state.state_dict()["residuals"], saved["residuals"]
    assert now.keys() == then.keys() and all(torch.equal(now[name], then[name]) for name in then)


def test_error_feedback_makes_up_for_rounding_in_later_steps(
    addresses: list[str], job: str, tmp_path: Any
) -> None:
    for errors in run_ranks(2, _sums, addresses, job, str(tmp_path / "store")):
        assert errors["on"] < errors["off"] / 2, errors


class Dot(nn.Module):
    """Its gradient is its input, whatever its weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Any) -> Any:
        return self.weight @ inputs


class Dots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dots = nn.ModuleList(Dot(size) for size in DOTS)

    def forward(self, inputs: Any) -> Any:
        return sum(dot(part) for dot, part in zip(self.dots, inputs.split(DOTS), strict=True))


def _inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(sum(DOTS), generator=torch.Generator().manual_seed(100 * step + rank))


def _moved(rank: int, world: int, addresses: list[str], job: str) -> dict[str, float]:
    """How far the weights of an Overlap are from the sum of all gradients of STEPS steps."""
    inputs = [_inputs(r, step) for r in range(world) for step in range(STEPS)]
    exact = torch.stack(inputs).sum(0) / world
    errors = {}
    with join(rank, world, addresses, job) as group:
        for name, feedback in (("off", False), ("on", True)):
            model = Dots()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            overlap = Overlap(
                model, optimizer, group, bucket_cap_mb=0.001, wire_dtype="e3m0",
                error_feedback=feedback,
            )  # fmt: skip
            with overlap:
                for step in range(STEPS):
                    optimizer.zero_grad()
                    model(_inputs(rank, step)).backward()
                    optimizer.step()
                    if step == STEPS // 2:
                        overlap.synchronize()
                        _reload(overlap.state)
            kept = overlap.state.state_dict()["residuals"]
            assert set(kept) == ({n for n, _ in model.named_parameters()} if feedback else set())
            moved = torch.cat([p.detach() for p in model.parameters()])
            errors[name] = float((moved + exact).norm() / exact.norm())
    return errors


def test_error_feedback_of_an_overlap(addresses: list[str], job: str) -> None:
    for errors in run_ranks(2, _moved, addresses, job):
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
