"""The callback ``DiLoCo`` on each backend of Keras, beside the one of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer_client import Group
from reducer_client.errors import MismatchError
from tests.frameworks.imports import import_keras
from tests.frameworks.keras_models import fit, make_model
from tests.support.digits import BATCH, PATIENCE, digest, share
from tests.support.frameworks import needs
from tests.support.ranks import join, run_ranks

pytestmark = [needs("sklearn"), pytest.mark.timeout(300)]
WORLD = 2
HIDDEN = 16
BACKENDS = [
    pytest.param("tensorflow", marks=needs("keras", "tensorflow")),
    pytest.param("jax", marks=needs("keras", "jax")),
    pytest.param("torch", marks=needs("keras", "torch")),
]
STREAMED: dict[str, Any] = {"every": 5, "fragments": 2, "delay": 1, "keep_local": 0.5}


def _weights(model: Any) -> list[Any]:
    return model.get_weights()  # type: ignore[no-any-return]


def _train(keras: Any, group: Group, seed: int, callback: Any, **options: Any) -> Any:
    """A model after an epoch, and its weights after each batch."""
    model = make_model(keras, seed, HIDDEN)
    seen: list[list[Any]] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if keras.backend.backend() == "jax":
                model.jax_state_sync()
            seen.append(_weights(model))

    data = share(group.rank, group.world_size)
    fit(keras, model, keras.optimizers.SGD(0.1), data, BATCH, callbacks=[callback, Look()])
    return model, seen


def _compare(rank: int, world: int, addresses: list[str], job: str, backend: str) -> Any:
    keras = import_keras(backend)
    from reducer_client.keras import DiLoCo, OuterSGD

    with join(rank, world, addresses, job) as group:
        # One blocking exchange is the mean of what the ranks have learned alone.
        plain = DiLoCo(group, every=4, outer=OuterSGD(lr=1.0, momentum=0.0))
        model, seen = _train(keras, group, 5 + rank, plain)
        alone = DiLoCo(group, every=4, keep_local=1.0)
        _, own = _train(keras, group, 5, alone)
        mean = [group.all_reduce(w, "mean").wait() for w in own[3]]
        if rank == 0:  # whose first weights both had
            for ours, expected in zip(seen[3], mean, strict=True):
                np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        prints = [digest(each) for each in seen]
        streamed = DiLoCo(group, **STREAMED)
        model, _ = _train(keras, group, rank, streamed)
        state = streamed.state_dict()
        if rank == 1:
            state["outer"][0][0] += 1
        again = DiLoCo(group, **STREAMED)
        again.load_state_dict(state)
        with pytest.raises(MismatchError, match="rank 1: another outer state than rank 0"):
            _train(keras, group, rank, again)
        return prints, digest(_weights(model))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_are_equal_after_each_exchange(addresses: list[str], backend: str) -> None:
    job = f"diloco-{backend}"
    (first, one), (second, other) = run_ranks(
        WORLD, _compare, addresses, job, backend, timeout=PATIENCE
    )
    equal = [at for at, pair in enumerate(zip(first, second, strict=True), 1) if len({*pair}) == 1]
    assert equal == list(range(4, len(first) + 1, 4))
    assert one == other


def _as_torch(rank: int, world: int, addresses: list[str], job: str) -> None:
    """The same pseudo-gradients give the same outer weights as with PyTorch."""
    keras = import_keras("torch")
    import torch

    from reducer_client.keras import DiLoCo
    from reducer_client.torch import DiLoCo as TorchDiLoCo

    with join(rank, world, addresses, job) as group:
        ours, _ = _train(keras, group, 0, DiLoCo(group, **STREAMED))
        model = make_model(keras, 0, HIDDEN)
        parameters = torch.nn.ParameterList([v.value for v in model.trainable_variables])
        opt = TorchDiLoCo(parameters, torch.optim.SGD(parameters, 0.1), group, **STREAMED)
        images, labels = (torch.from_numpy(np.asarray(each)) for each in share(rank, world))
        for start in range(0, len(images), BATCH):
            batch = slice(start, start + BATCH)
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch].long()).backward()
            opt.step()
        opt.finish()
        for mine, theirs in zip(_weights(ours), _weights(model), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@needs("keras", "torch")
def test_it_trains_as_pytorchs_does(addresses: list[str]) -> None:
    run_ranks(WORLD, _as_torch, addresses, "diloco-as-torch", timeout=PATIENCE)
