"""Keras 3 on each of its backends: two ranks train as one does on the batches put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reducer_client import Group
from tests.frameworks.imports import import_keras, text_of
from tests.frameworks.keras_models import fit, make_model, train_on_words
from tests.support.counters import bytes_taken
from tests.support.digits import (
    BATCH,
    PATIENCE,
    STEPS,
    assert_close,
    digest,
    share,
    together,
)
from tests.support.frameworks import needs
from tests.support.ranks import join, run_ranks

pytestmark = [needs("sklearn"), pytest.mark.timeout(300)]
WORLD = 2
EPOCHS = 2
HIDDEN = 32
PARAMETERS = 64 * HIDDEN + HIDDEN + HIDDEN * 10 + 10
BACKENDS = [
    pytest.param("tensorflow", marks=needs("keras", "tensorflow")),
    pytest.param("jax", marks=needs("keras", "jax")),
    pytest.param("torch", marks=needs("keras", "torch")),
]


def _adam(keras: Any) -> Any:
    # Clipping acts on what was reduced: the norm of the ranks' own gradients is another one.
    return keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01, name="adam")


def _weights(model: Any) -> list[Any]:
    return model.get_weights()  # type: ignore[no-any-return]


def _train(rank: int, world: int, addresses: list[str], job: str, backend: str) -> Any:
    keras = import_keras(backend)
    from reducer_client.keras import BroadcastGlobalVariables, DistributedOptimizer, MetricAverage

    with join(rank, world, addresses, job) as group:
        model = make_model(keras, rank, HIDDEN)
        optimizer = DistributedOptimizer(_adam(keras), group)
        before = bytes_taken(group)
        history = fit(
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
        alone = make_model(keras, 0, HIDDEN)
        expected = fit(keras, alone, _adam(keras), together(world), world * BATCH, epochs=EPOCHS)
    if rank == 0:
        assert_close(_weights(model), _weights(alone), 2e-5)
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(history[name], expected[name], rtol=2e-5)
        assert expected["loss"][-1] < expected["loss"][0]
    return found, history, taken, len(optimizer.variables)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_equals_one_process_on_the_joined_batches(addresses: list[str], backend: str) -> None:
    outcomes = run_ranks(WORLD, _train, addresses, f"fit-{backend}", backend, timeout=PATIENCE)
    assert len({found for found, *_ in outcomes}) == 1
    assert outcomes[0][1] == outcomes[1][1]  # the averaged metrics
    gradients = WORLD * EPOCHS * STEPS * PARAMETERS * 4
    taken = outcomes[0][2]
    # Beside the gradients: the broadcast of weights and two moments, and a few numbers.
    assert gradients + 3 * PARAMETERS * 4 <= taken <= gradients + 3 * PARAMETERS * 4 + 2000


def _many_cases(
    rank: int, world: int, addresses: list[str], job: str, backend: str, folder: str
) -> list[str]:
    keras = import_keras(backend)
    with join(rank, world, addresses, job) as group:
        found = [
            _with_loss_scale(keras, group),
            _with_shared_rows(keras, group),
            _from_a_checkpoint(keras, group, Path(folder) / f"rank{rank}.keras"),
        ]
        _check_refusals(keras, group)
        if backend == "tensorflow":
            found.append(_otherwise(keras, group))
            _check_xla_is_refused(keras, group)
        texts = text_of(Exception, lambda: _with_another_dtype(keras, group))
    assert "MismatchError" in texts and "float32" in texts and "float64" in texts, texts
    return found


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_loss_scales_sparse_gradients_checkpoints_and_errors(
    addresses: list[str], tmp_path: Path, backend: str
) -> None:
    found = run_ranks(
        WORLD, _many_cases, addresses, f"many-{backend}", backend, str(tmp_path), timeout=200
    )
    assert found[0] == found[1]


def _with_loss_scale(keras: Any, group: Group) -> str:
    """One rank's gradients are not finite in one step: no rank takes it, and all scale down."""
    from reducer_client.keras import DistributedOptimizer

    images, labels = share(group.rank, group.world_size)
    if group.rank == 1:
        images = images.copy()
        images[3 * BATCH] = np.inf
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model(keras, 0, HIDDEN)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 1024.0)
        optimizer = DistributedOptimizer(scaled, group, wire_dtype="bfloat16")
        before = bytes_taken(group)
        fit(keras, model, optimizer, (images, labels), BATCH)
        assert bytes_taken(group) - before == group.world_size * STEPS * PARAMETERS * 2
        refused = DistributedOptimizer(keras.optimizers.SGD(), group)
        text = text_of(ValueError, lambda: model.compile(refused))
    finally:
        keras.config.set_dtype_policy("float32")
    assert "Use DistributedOptimizer(LossScaleOptimizer(optimizer), group)" in text
    assert float(optimizer.dynamic_scale.numpy()) == 512.0
    assert int(optimizer.inner_optimizer.iterations.numpy()) == STEPS - 1
    assert all(np.isfinite(weight).all() for weight in _weights(model))
    return digest(_weights(model))


def _with_shared_rows(keras: Any, group: Group) -> str:
    from reducer_client.keras import DistributedOptimizer

    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), group)
    found = train_on_words(keras, optimizer, share(group.rank, group.world_size), BATCH)
    every = together(group.world_size), group.world_size * BATCH
    assert_close(found, train_on_words(keras, keras.optimizers.SGD(0.1), *every))
    return digest(found)


def _from_a_checkpoint(keras: Any, group: Group, path: Path) -> str:
    """The root alone loads what training has left; all go on as if nothing had been."""
    from reducer_client.keras import BroadcastGlobalVariables, DistributedOptimizer

    data = share(group.rank, group.world_size)
    model = make_model(keras, 0, HIDDEN)
    fit(keras, model, DistributedOptimizer(_adam(keras), group), data, BATCH)
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    if group.rank:
        loaded = make_model(keras, 9, HIDDEN)
        loaded.optimizer = _adam(keras)
    went_on = DistributedOptimizer(loaded.optimizer, group)
    settings = [optimizer.get_config() for optimizer in (went_on, model.optimizer)]
    assert settings[0] == settings[1], settings
    sharing = [BroadcastGlobalVariables(group)]
    fit(keras, loaded, went_on, data, BATCH, callbacks=sharing)
    fit(keras, model, model.optimizer, data, BATCH)
    for mine, other in zip(_weights(loaded), _weights(model), strict=True):
        np.testing.assert_array_equal(mine, other)
    return digest(_weights(loaded))


def _otherwise(keras: Any, group: Group) -> str:
    """Eagerly, and several steps a call: the same. Accumulated gradients: as one process does."""
    from reducer_client.keras import DistributedOptimizer

    def train(sgd: Any, data: tuple[Any, Any], batch: int, **options: Any) -> list[Any]:
        model = make_model(keras, 0, HIDDEN)
        fit(keras, model, sgd, data, batch, **options)
        return _weights(model)

    world = group.world_size
    mine, every = (share(group.rank, world), BATCH), (together(world), world * BATCH)
    found = []
    for options in ({"run_eagerly": True}, {"steps_per_execution": 4}):
        found.append(train(DistributedOptimizer(_adam(keras), group), *mine, **options))
        assert_close(found[-1], train(_adam(keras), *every), 2e-5)
    accumulating = [keras.optimizers.SGD(0.1, gradient_accumulation_steps=3) for _ in range(2)]
    found.append(train(DistributedOptimizer(accumulating[0], group), *mine))
    assert_close(found[-1], train(accumulating[1], *every), 2e-5)
    return digest([weight for weights in found for weight in weights])


def _check_refusals(keras: Any, group: Group) -> None:
    from reducer_client.keras import DistributedOptimizer

    twice = DistributedOptimizer(keras.optimizers.SGD(), group)
    for wrong in (twice, "sgd"):
        with pytest.raises(TypeError, match="an optimizer of Keras 3 that is not distributed yet"):
            DistributedOptimizer(wrong, group)


def _check_xla_is_refused(keras: Any, group: Group) -> None:
    from reducer_client.keras import DistributedOptimizer

    optimizer = DistributedOptimizer(keras.optimizers.SGD(), group)
    model, data = make_model(keras, 0, HIDDEN), share(group.rank, group.world_size)
    text = text_of(
        NotImplementedError, lambda: fit(keras, model, optimizer, data, BATCH, jit_compile=True)
    )
    assert "use model.compile(jit_compile=False)" in text


def _with_another_dtype(keras: Any, group: Group) -> None:
    from reducer_client.keras import DistributedOptimizer

    keras.config.set_dtype_policy("float64" if group.rank else "float32")
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(), group)
    fit(keras, make_model(keras, 0, HIDDEN), optimizer, share(group.rank, group.world_size), BATCH)
