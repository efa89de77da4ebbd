"""Keras' ``ServerOptimizer`` on each backend: models whose variables are in a table."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reducer_client
from reducer.optimizers import SGD, Adam, NoOptimizer, Optimizer
from reducer_client.tables import SSP, KOfN, ParameterServer
from tests.frameworks.imports import import_keras, text_of
from tests.frameworks.keras_models import fit, make_model, make_words_model, train_on_words
from tests.support.digits import BATCH, PATIENCE, STEPS, assert_close, digest, share, together
from tests.support.frameworks import needs
from tests.support.ranks import run_ranks

pytestmark = [needs("sklearn"), pytest.mark.timeout(300)]
EPOCHS = 2
HIDDEN = 16
BACKENDS = [
    pytest.param("tensorflow", marks=needs("keras", "tensorflow")),
    pytest.param("jax", marks=needs("keras", "jax")),
    pytest.param("torch", marks=needs("keras", "torch")),
]
PLAIN = SGD(0.1, convention="keras")


def _join(addresses: list[str], job: str, worker: int = 0, workers: int = 1) -> ParameterServer:
    return reducer_client.parameter_server(
        addresses, job=job, worker=worker, workers=workers, timeout=60.0
    )


def _net(keras: Any, seed: int = 0) -> Any:
    """A model whose layers have the same names on all workers, because Keras begins at 1 again."""
    keras.utils.clear_session()
    return make_model(keras, seed, HIDDEN)


def _make(model: Any, ps: ParameterServer, optimizer: Optimizer = PLAIN, **options: Any) -> Any:
    from reducer_client.keras import ServerOptimizer

    return ServerOptimizer.create(model, ps, optimizer=optimizer, **options)


def _halve(keras: Any) -> Any:
    """A callback that halves the learning rate after each epoch."""
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * 0.5**epoch)


# --- two workers in common steps ----------------------------------------------------------------


def _train(rank: int, world: int, addresses: list[str], job: str, backend: str) -> Any:
    keras = import_keras(backend)
    model = _net(keras, seed=rank)  # worker 1 takes over the values of worker 0
    with _join(addresses, job, rank, world) as ps:
        ours = _make(model, ps, Adam(0.01, convention="keras"), mode="sync")
        data = share(rank, world)
        fit(keras, model, ours, data, BATCH, epochs=EPOCHS, callbacks=[_halve(keras)])
        assert ours.counts.applied == EPOCHS * STEPS == ours.receipt.version
        assert int(keras.ops.convert_to_numpy(ours.iterations)) == EPOCHS * STEPS
        assert ours.table.lr == 0.005 and ours._training.rate_changes == EPOCHS - 1
    if rank == 0:
        alone, adam = _net(keras), keras.optimizers.Adam(0.01)
        batch = world * BATCH
        fit(keras, alone, adam, together(world), batch, epochs=EPOCHS, callbacks=[_halve(keras)])
        assert_close(model.get_weights(), alone.get_weights(), 1e-4)
    return digest(model.get_weights())


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_workers_in_common_steps_are_one_on_whole_batches(
    addresses: list[str], backend: str
) -> None:
    found = run_ranks(2, _train, addresses, f"sync-{backend}", backend, timeout=PATIENCE)
    assert found[0] == found[1]


# --- one worker, many cases ---------------------------------------------------------------------


def _many_cases(
    rank: int, world: int, addresses: list[str], job: str, backend: str, folder: str
) -> None:
    keras = import_keras(backend)
    with _join(addresses, job) as ps:
        _check_clipping_and_schedule(keras, ps)
        _check_embeddings(keras, ps)
        _check_plateau_and_saved_state(keras, ps, Path(folder))
        _check_a_loss_scale(keras, ps)
        _check_refusals(keras, ps)
        _check_bad_gradients(keras, ps)
    _check_a_late_worker(keras, addresses, f"{job}-late")


@pytest.mark.parametrize("backend", BACKENDS)
def test_schedules_clipping_states_and_errors(
    addresses: list[str], tmp_path: Path, backend: str
) -> None:
    run_ranks(
        1, _many_cases, addresses, f"many-{backend}", backend, str(tmp_path), timeout=PATIENCE
    )


def _check_clipping_and_schedule(keras: Any, ps: ParameterServer) -> None:
    options = {
        "learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5),
        "global_clipnorm": 0.5,
    }
    mine, other = _net(keras), _net(keras)
    sgd = SGD(0.1, convention="keras", momentum=0.9, nesterov=True)
    ours = _make(mine, ps, sgd, mode="sync", name="clipped", **options)
    theirs = keras.optimizers.SGD(momentum=0.9, nesterov=True, **options)
    for model, optimizer in ((mine, ours), (other, theirs)):
        fit(keras, model, optimizer, share(0, 1), BATCH, run_eagerly=True)
    assert_close(mine.get_weights(), other.get_weights(), 1e-4)
    assert ours._training.rate_changes == STEPS - 1


def _check_embeddings(keras: Any, ps: ParameterServer) -> None:
    keras.utils.clear_session()
    model = make_words_model(keras)
    ours = _make(model, ps, mode=SSP(0), name="words")
    found = train_on_words(keras, ours, share(0, 1), BATCH, model)
    assert_close(found, train_on_words(keras, keras.optimizers.SGD(0.1), share(0, 1), BATCH))
    assert ours.table._state.clock == STEPS


def _check_plateau_and_saved_state(keras: Any, ps: ParameterServer, folder: Path) -> None:
    model = _net(keras)
    ours = _make(model, ps, name="plateau")
    no_progress = {"monitor": "loss", "factor": 0.5, "patience": 1, "min_delta": 100.0}
    plateau = keras.callbacks.ReduceLROnPlateau(**no_progress)
    history = fit(keras, model, ours, share(0, 1), BATCH, epochs=5, callbacks=[plateau])
    *_, last = rates = [round(float(rate), 6) for rate in history["learning_rate"]]
    changes = len(set(rates)) - 1
    assert ours.table.lr == last < 0.1 and ours._training.rate_changes == changes > 0
    ours.learning_rate = 0.001  # the next push tells it
    model.save_weights(folder / "ours.weights.h5")
    model.save(folder / "ours.keras")
    with pytest.raises(ValueError, match="compile=False"):
        keras.saving.load_model(folder / "ours.keras")
    again = _net(keras, seed=1)
    optimizer = _make(again, ps, name="again")
    again.compile(optimizer, "mse")
    again.load_weights(folder / "ours.weights.h5")
    assert optimizer.table.lr == 0.001 and optimizer._training.rate_changes == changes
    plain = _net(keras)
    fit(keras, plain, keras.optimizers.SGD(0.1), share(0, 1), STEPS * BATCH)
    plain.save_weights(folder / "plain.weights.h5")
    with pytest.raises(ValueError, match="is another optimizer's"):
        again.load_weights(folder / "plain.weights.h5")


def _check_a_loss_scale(keras: Any, ps: ParameterServer) -> None:
    """A step whose gradients overflow is not pushed. In common steps the others would wait."""
    images, labels = share(0, 1)
    images = images.copy()
    images[3 * BATCH] = np.inf
    keras.utils.clear_session()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model(keras, 0, HIDDEN)
        ours = _make(model, ps, name="scaled")
        fit(keras, model, ours, (images, labels), BATCH)
        refused = _make(model, ps, mode="sync", name="refused")
        text = text_of(ValueError, lambda: model.compile(refused))
    finally:
        keras.config.set_dtype_policy("float32")
    assert ours.counts.applied == STEPS - 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert "use the policy mixed_bfloat16" in text


def _check_a_late_worker(keras: Any, addresses: list[str], job: str) -> None:
    mode = KOfN(1, bound=100)
    images, labels = share(0, 1)
    with _join(addresses, job, 0, 2) as one, _join(addresses, job, 1, 2) as other:
        models = [_net(keras), _net(keras, seed=1)]
        made = [_make(each, ps, mode=mode) for each, ps in zip(models, (one, other), strict=True)]
        fit(keras, models[0], made[0], (images[: 3 * BATCH], labels[: 3 * BATCH]), BATCH)
        fit(keras, models[1], made[1], (images[:BATCH], labels[:BATCH]), BATCH)
        newest = list(made[0].table.pull().values())
    assert made[1].receipt.outcome == "dropped"
    assert digest(newest) == digest(models[0].get_weights()) == digest(models[1].get_weights())


def _wrong_models(keras: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "expected a keras.Model, got str", lambda: "model"
    yield "is not built", lambda: keras.Sequential([keras.layers.Dense(2)])

    def with_dense(**options: Any) -> Any:
        keras.utils.clear_session()
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, **options)])

    yield "the constraint NonNeg", lambda: with_dense(kernel_constraint="non_neg")
    yield "no trainable variables", lambda: with_dense(trainable=False)
    if keras.backend.backend() != "jax":
        yield "got float64: tables are float32", lambda: with_dense(dtype="float64")


def _check_refusals(keras: Any, ps: ParameterServer) -> None:
    from reducer_client.keras import ServerOptimizer

    for text, make in _wrong_models(keras):
        with pytest.raises((TypeError, ValueError), match=text):
            _make(make(), ps, name="wrong")
    model = _net(keras)
    with pytest.raises(ValueError, match="no optimizer"):
        _make(model, ps, NoOptimizer(), name="means")
    table = ps.table("one", {"kernel": np.zeros(3, np.float32)}, optimizer=PLAIN)
    with pytest.raises(ValueError, match=r"'kernel': missing in the model, \(3,\) in the table"):
        ServerOptimizer(model, table)
    with pytest.warns(UserWarning, match="Divide the learning rate by the number of workers"):
        _make(model, ps, SGD(0.1, convention="keras", momentum=0.9), name="momentum")


def _check_bad_gradients(keras: Any, ps: ParameterServer) -> None:
    model, before = _net(keras), _net(keras).get_weights()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours = _make(model, ps, name="bad")
    gradients = [keras.ops.ones(weight.shape) for weight in before]
    with pytest.raises(ValueError, match=r"no gradient of sequential/dense/bias: .*trainable"):
        ours.apply([gradients[0], None, *gradients[2:]])
    gradients[0] = gradients[0] * float("nan")
    text = text_of(Exception, lambda: ours.apply(gradients))
    assert "NaN" in text and "'sequential/dense/kernel'" in text
    assert_close(model.get_weights(), before, 0.0)
    if keras.backend.backend() == "tensorflow":
        compiled = {"jit_compile": True}
        text = text_of(
            NotImplementedError,
            lambda: fit(keras, model, ours, share(0, 1), BATCH, **compiled),
        )
        assert "use model.compile(jit_compile=False)" in text
