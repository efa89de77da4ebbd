"""Compressed gradients train as well as whole ones, on handwritten digits, with fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch  # only where it is installed
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from bench.compression.digits import EPOCHS, Digits, make_net, save_digits
from bench.compression.methods import METHODS, WHOLE
from reducer_client import Group
from reducer_client.torch import ReductionState, TopKState
from reducer_client.torch.narrowing import NarrowingGauge
from reducer_client.torch.residuals import Residuals
from tests.support.ranks import run_ranks
from tests.support.torch_ranks import digest, gloo_and_group

SEED = 1
# Of the accuracy with whole gradients: half a point, four of the 797 images.
TOLERANCE = 0.005
# Of the bytes of gradients, for frame headers; here they take 0.2 to 1.8 %.
HEADERS = 0.03
FORGETFUL = "top 1 % without error feedback"


class Run(NamedTuple):
    """One training, seen by one rank."""

    accuracy: float
    bytes_moved: int
    bytes_on_wire: int
    digest: str
    narrowing_error: float | None


class _Forgetful(Residuals):
    """Keeps nothing."""

    def row(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return super().row(parameters).zero_()


def _attach_forgetful(model: DistributedDataParallel, group: Group) -> TopKState:
    state = reducer_torch.attach_topk(model, group)
    state.residuals = _Forgetful(model.module)
    return state


def _train(
    rank: int,
    world: int,
    addresses: list[str],
    job: str,
    store: str,
    names: list[str],
    epochs: int,
) -> dict[str, Run]:
    runs = {}
    methods = {**METHODS, FORGETFUL: _attach_forgetful}
    with gloo_and_group(rank, world, addresses, job, store) as group:
        digits = Digits(rank, world, Path(store).with_name("digits.npz"))
        for name in names:
            model = DistributedDataParallel(make_net(SEED), **reducer_torch.ddp_options())
            state = methods[name](model, group)
            assert isinstance(state, ReductionState)
            before = _moved(group)
            trained = digits.train(model, SEED, epochs)
            moved = _moved(group) - before
            runs[name] = Run(
                trained.accuracy,
                moved,
                state.bytes_on_wire,
                digest(model),
                state.narrowing.error,
            )
    return runs


def _moved(group: Group) -> int:
    stats = group.stats()
    return int(stats["bytes_sent"] + stats["bytes_received"])


def _run(
    world: int, addresses: list[str], folder: Path, names: list[str], epochs: int
) -> dict[str, Run]:
    """What rank 0 saw, once it is clear that all ranks hold the same bits."""
    save_digits(folder / "digits.npz")
    job, store = f"digits-{world}", str(folder / f"store{world}")
    ranks = run_ranks(world, _train, addresses, job, store, names, epochs, timeout=200)
    for runs in ranks:
        for name in names:
            assert runs[name].digest == ranks[0][name].digest, name
            assert runs[name].bytes_on_wire == ranks[0][name].bytes_on_wire, name
    runs = ranks[0]
    for name, run in runs.items():
        assert run.bytes_on_wire <= run.bytes_moved <= run.bytes_on_wire * (1 + HEADERS), name
    return runs


@pytest.mark.timeout(240)
def test_compressed_gradients_reach_the_accuracy_of_whole_ones(
    addresses: list[str], tmp_path: Path
) -> None:
    names = [WHOLE, "bfloat16", "float16", "top 1 %"]
    runs = _run(2, addresses, tmp_path, [*names, FORGETFUL], EPOCHS)
    whole = runs[WHOLE]
    assert whole.accuracy > 0.93, runs
    for name in names:
        assert runs[name].accuracy >= whole.accuracy - TOLERANCE, (name, runs)
    assert runs[FORGETFUL].accuracy < whole.accuracy - 4 * TOLERANCE, runs
    for name, half_a_step in (("bfloat16", 2**-9), ("float16", 2**-12)):
        error = runs[name].narrowing_error
        # Of numbers just above a power of two it is half a step, of those below it half of that.
        assert error is not None and half_a_step / 2 < error < half_a_step * 2, (name, error)
        assert whole.bytes_moved / runs[name].bytes_moved == pytest.approx(2, rel=HEADERS), name
    assert whole.bytes_moved > 45 * runs["top 1 %"].bytes_moved, runs


def test_what_float16_cannot_hold_is_said_once_and_counted(
    solo: Group, caplog: pytest.LogCaptureFixture
) -> None:
    state = ReductionState(solo, wire_dtype="float16")
    for values in ([65519.0, 1.0], [-65520.0, 1.0], [3e38, torch.nan], [torch.inf, 1.0], [7e4, 0]):
        bucket = torch.tensor(values)
        overflows = bool((bucket.abs() >= 65520).any() and bucket.isfinite().all())
        before = state.narrowing.overflows
        work = state.submit(bucket, 0, lambda work: None)
        work.wait()
        assert state.narrowing.overflows - before == overflows, values
        assert bool(bucket.isfinite().all()) == (values[0] == 65519.0), values
    assert state.narrowing.overflows == 2
    said = [record.getMessage() for record in caplog.records if "float16" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("a gradient of 65520 became Inf in float16"), said
    assert state.bytes_on_wire == 5 * 2 * 2 * 2


def test_the_error_of_narrowing_is_measured_now_and_then(solo: Group) -> None:
    state = ReductionState(solo, wire_dtype="bfloat16")
    state.narrowing.every = 3
    errors = []
    for value in (1 + 2**-8, 1.0, 1.0, 1.0, 1 + 2**-8, 0.0, torch.nan):
        state.submit(torch.tensor([value]), 0, lambda work: None).wait()
        errors.append(state.narrowing.error)
    expected = 2**-8 / (1 + 2**-8)
    assert errors == [pytest.approx(expected)] * 3 + [0.0] * 4
    whole = ReductionState(solo)
    whole.submit(torch.tensor([1.3]), 0, lambda work: None).wait()
    assert whole.narrowing.error is None
    with pytest.raises(ValueError, match="every 0: expected 1 or more"):
        NarrowingGauge("bfloat16", every=0)
