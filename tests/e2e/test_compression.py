"""Compressed gradients train as well as whole ones on handwritten digits, with fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
from torch.nn.parallel import DistributedDataParallel

import reducer_client.torch as reducer_torch
from bench.compression.compare import Outcome, compare
from bench.compression.digits import Digits, save_digits
from bench.compression.methods import METHODS, WHOLE
from reducer_client import Group
from reducer_client.torch import ReductionState, TopKState
from reducer_client.torch.hook.narrowing import NarrowingGauge
from reducer_client.torch.hook.residuals import Residuals
from tests.support.frameworks import needs_extra
from tests.support.process_group import process_group
from tests.support.ranks import run_ranks

pytestmark = needs_extra("sklearn")

SEED = 1
EPOCHS = 8
# How much less accuracy than with whole gradients is allowed: half a point, 4 of the 797 images.
TOLERANCE = 0.005
# Share of frame headers in the bytes of gradients; here 0.2 to 1.8 %.
HEADERS = 0.03
FORGETFUL = "top 1% without error feedback"


class _Forgetful(Residuals):
    """Residuals that are always zero."""

    def row(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return super().row(parameters).zero_()


def _attach_forgetful(model: DistributedDataParallel, group: Group) -> TopKState:
    state = reducer_torch.attach_topk(model, group)
    state.residuals = _Forgetful(model.module)
    return state


def _compare(
    rank: int, world: int, addresses: list[str], store: str, names: list[str]
) -> dict[str, Outcome]:
    every = {**METHODS, FORGETFUL: _attach_forgetful}
    with process_group(rank, world, addresses, store, job="digits"):
        digits = Digits(rank, world, Path(store).with_name("digits.npz"))
        return compare({name: every[name] for name in names}, digits, SEED, EPOCHS)


@pytest.mark.timeout(240)
@pytest.mark.long
def test_compressed_gradients_reach_the_accuracy_of_whole_ones(
    addresses: list[str], tmp_path: Path
) -> None:
    names = [
        *(WHOLE, "bfloat16", "float16", "int8 both ways", "e3m0"),
        *("top 1%", "PowerSGD rank 2", "fp16_compress_hook"),
    ]
    save_digits(tmp_path / "digits.npz")
    arguments = (addresses, str(tmp_path / "store"), [*names, FORGETFUL])
    ranks = run_ranks(2, _compare, *arguments, timeout=200)
    outcomes = ranks[0]
    whole = outcomes[WHOLE]
    assert whole.accuracy > 0.9, outcomes
    for name in names:
        assert outcomes[name].accuracy >= whole.accuracy - TOLERANCE, (name, outcomes)
    assert outcomes[FORGETFUL].accuracy < whole.accuracy - 4 * TOLERANCE, outcomes
    for name, outcome in outcomes.items():
        assert ranks[1][name].digest == outcome.digest, name
    _check_bytes(outcomes)
    _check_errors(outcomes)


def _check_bytes(outcomes: dict[str, Outcome]) -> None:
    for name, outcome in outcomes.items():
        said = outcome.bytes_on_wire
        if said is not None:
            assert said <= outcome.bytes_moved <= said * (1 + HEADERS), (name, outcome)
    whole = outcomes[WHOLE].bytes_moved
    saved = {name: whole / outcome.bytes_moved for name, outcome in outcomes.items()}
    for name in ("bfloat16", "float16", "fp16_compress_hook"):
        assert saved[name] == pytest.approx(2, rel=HEADERS), saved
    assert saved["int8 both ways"] == pytest.approx(1024 / 260, rel=HEADERS), saved
    assert saved["e3m0"] == pytest.approx(2 / (132 / 1024 + 1 / 2), rel=HEADERS), saved
    assert saved["top 1%"] > 45, saved
    assert saved["PowerSGD rank 2"] > 20, saved


def _check_errors(outcomes: dict[str, Outcome]) -> None:
    for name, half_a_step in (("bfloat16", 2**-9), ("float16", 2**-12)):
        error = outcomes[name].narrowing_error
        # At most half a step for numbers just above a power of two, half of that just below it.
        assert error is not None and half_a_step / 2 < error < half_a_step * 2, (name, error)


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
    with pytest.raises(ValueError, match="every=0: expected 1 or more"):
        NarrowingGauge("bfloat16", every=0)
