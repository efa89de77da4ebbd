"""Keras 3 on each of its backends: two ranks train as one does on the batches put together."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.support.digits import (
    BATCH,
    STEPS,
    assert_close,
    bytes_taken,
    digest,
    needs,
    share,
    together,
)
from tests.support.ranks import join, run_ranks

WORLD = 2
EPOCHS = 2
PARAMETERS = 64 * 32 + 32 + 32 * 10 + 10
BACKENDS = [
    pytest.param("tensorflow", marks=needs("keras", "tensorflow")),
    pytest.param("jax", marks=needs("keras", "jax")),
    pytest.param("torch", marks=needs("keras", "torch")),
]


def _import_keras(backend: str) -> Any:
    os.environ["KERAS_BACKEND"] = backend
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    assert keras.backend.backend() == backend
    return keras


def _make(keras: Any, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def _adam(keras: Any) -> Any:
    # Clipping acts on what was reduced: the norm of the ranks' own gradients is another one.
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01)


def _fit(keras: Any, model: Any, optimizer: Any, data: Any, batch: int, **options: Any) -> Any:
    compiling = {"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}
    eager = options.pop("run_eagerly", False)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=eager,
        **compiling,
    )
    return model.fit(*data, batch_size=batch, shuffle=False, verbose=0, **options).history


def _weights(model: Any) -> list[Any]:
    return model.get_weights()  # type: ignore[no-any-return]


def _train(rank: int, world: int, addresses: list[str], job: str, backend: str) -> Any:
    keras = _import_keras(backend)
    from reducer_client.keras import BroadcastGlobalVariables, DistributedOptimizer, MetricAverage

    with join(rank, world, addresses, job) as group:
        model = _make(keras, seed=rank)
        optimizer = DistributedOptimizer(_adam(keras), group)
        before = bytes_taken(group)
        history = _fit(
            keras,
            model,
            optimizer,
            share(rank, world),
            BATCH,
            epochs=EPOCHS,
            callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)],
        )
        taken = bytes_taken(group) - before
        found = digest(_weights(model) + [np.asarray(v) for v in optimizer.variables])
        alone = _make(keras, seed=0)
        expected = _fit(keras, alone, _adam(keras), together(world), world * BATCH, epochs=EPOCHS)
    if rank == 0:
        assert_close(_weights(model), _weights(alone), 2e-5)
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(history[name], expected[name], rtol=2e-5)
        assert expected["loss"][-1] < expected["loss"][0]
    return found, history, taken, len(optimizer.variables)


@needs("sklearn")
@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_equals_one_process_on_the_joined_batches(addresses: list[str], backend: str) -> None:
    outcomes = run_ranks(WORLD, _train, addresses, f"fit-{backend}", backend, timeout=150)
    assert len({found for found, *_ in outcomes}) == 1
    assert outcomes[0][1] == outcomes[1][1]  # the averaged metrics
    gradients = WORLD * EPOCHS * STEPS * PARAMETERS * 4
    taken = outcomes[0][2]
    # Beside the gradients: the broadcast of weights and two moments, and a few numbers.
    assert gradients + 3 * PARAMETERS * 4 <= taken <= gradients + 3 * PARAMETERS * 4 + 2000
