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
            runs[name] = Run(trained.accuracy, moved, state.bytes_on_wire, digest(model))
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
    for name in ("bfloat16", "float16"):
        assert whole.bytes_moved / runs[name].bytes_moved == pytest.approx(2, rel=HEADERS), name
    assert whole.bytes_moved > 45 * runs["top 1 %"].bytes_moved, runs
