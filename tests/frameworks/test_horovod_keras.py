"""Horovod's names for TensorFlow and Keras: operations, tape, optimizer, callbacks."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.digits import BATCH, PATIENCE, STEPS, assert_close, digest, share, together
from tests.support.frameworks import needs
from tests.support.ranks import run_ranks

pytestmark = [needs("keras", "tensorflow", "sklearn"), pytest.mark.timeout(300)]
WORLD = 2
EPOCHS = 3


def _start(rank: int, world: int, addresses: list[str], job: str) -> tuple[Any, Any, Any]:
    os.environ |= {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(world),
        "REDUCER_ADDRS": ",".join(addresses),
        "REDUCER_JOB": job,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    hvd = importlib.import_module("reducer_client.horovod.keras")
    assert "torch" not in sys.modules
    hvd.init()
    return (
        hvd,
        importlib.import_module("reducer_client.horovod.tensorflow"),
        importlib.import_module("keras"),
    )


def _operations(rank: int, world: int, addresses: list[str], job: str) -> None:
    _, hvd, _ = _start(rank, world, addresses, job)
    tf: Any = importlib.import_module("tensorflow")
    mine = float(rank + 1)

    def reduce() -> Any:
        tensors = [tf.fill((2,), mine), tf.cast([2.0], tf.bfloat16) * mine, tf.constant(mine)]
        return [
            *hvd.grouped_allreduce(tensors, op=hvd.Sum),
            hvd.allreduce(tf.fill((2,), mine), compression=hvd.Compression.fp16),
            hvd.allreduce(tf.constant(mine), op=hvd.Max, name="largest"),
            hvd.allreduce(tf.constant(2.0), average=False, prescale_factor=0.5),
            hvd.allgather(tf.fill((rank + 1, 2), mine)),
            hvd.broadcast(tf.constant([rank, 7]), root_rank=1),
        ]

    wanted = [[3, 3], [6], 3, [1.5, 1.5], 2, 2, [[1, 1], [2, 2], [2, 2]], [1, 7]]
    for found in (reduce(), tf.function(reduce)()):
        for tensor, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(tensor, np.float64), want)
        assert [found[1].dtype, found[3].dtype] == [tf.bfloat16, tf.float32]
    weight = tf.Variable(3.0)
    with hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0) as tape:
        loss = weight * mine
    assert float(tape.gradient(loss, weight)) == 1.5
    hvd.broadcast_variables([weight.assign(mine)], root_rank=1)
    assert float(weight) == 2.0
    with pytest.raises(hvd.HorovodInternalError, match=r"float32.*float64|float64.*float32"):
        hvd.allreduce(tf.ones(2, tf.float64 if rank else tf.float32))
    failing = tf.function(lambda: hvd.allreduce(tf.ones(2 + rank), name="shapes"))
    with pytest.raises(tf.errors.OpError, match=r"HorovodInternalError[\s\S]*shapes"):
        failing()
    hvd.shutdown()


def test_operations(addresses: list[str]) -> None:
    run_ranks(WORLD, _operations, addresses, "operations", timeout=PATIENCE)


def _make(keras: Any, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])


def _fit(keras: Any, model: Any, optimizer: Any, data: Any, batch: int, callbacks: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    options = {"shuffle": False, "verbose": 0, "callbacks": callbacks, "epochs": EPOCHS}
    return model.fit(*data, batch_size=batch, **options).history


def _training(rank: int, world: int, addresses: list[str], job: str, folder: str) -> Any:
    hvd, _, keras = _start(rank, world, addresses, job)
    warned: list[str] = []
    logging.getLogger("reducer_client").addFilter(lambda r: bool(warned.append(r.getMessage())))
    rates: list[float] = []
    model = _make(keras, seed=rank)
    best = Path(folder) / f"rank{rank}.keras"
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1)
    decay = hvd.callbacks.LearningRateScheduleCallback(0.2, lambda epoch: 0.5, start_epoch=2)
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        warmup,
        decay,
        note,
        hvd.callbacks.BestModelCheckpoint(best, monitor="loss", mode="min"),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=0.5))
    history = _fit(keras, model, optimizer, share(rank, world), BATCH, callbacks)
    assert len(warned) == 2 and "no momentum correction" in warned[0]
    ramp = [0.1 + 0.1 * (step + 1) / STEPS for step in range(STEPS)]
    np.testing.assert_allclose(rates, ramp + [0.2] * STEPS + [0.1] * STEPS, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [0.2, 0.2, 0.1], rtol=1e-6)
    _check_alone(keras, model, history, rates, world)
    assert best.exists() == (rank == 0)
    if rank == 0:
        loaded = hvd.load_model(best)
        assert int(loaded.optimizer.iterations) == EPOCHS * STEPS
        with pytest.raises(TypeError, match="not distributed yet"):
            hvd.DistributedOptimizer(loaded.optimizer)
    assert hvd.allreduce([rank], average=False).tolist() == [1]
    hvd.shutdown()
    return digest(model.get_weights()), history


def _check_alone(keras: Any, model: Any, history: Any, rates: list[float], world: int) -> None:
    """One process, with the rates that the ranks had."""
    alone = _make(keras, seed=0)
    given = iter(rates)

    def give(batch: int, logs: Any) -> None:
        alone.optimizer.learning_rate = next(given)

    sgd = keras.optimizers.SGD(0.2, momentum=0.5)
    giving = [keras.callbacks.LambdaCallback(on_train_batch_begin=give)]
    expected = _fit(keras, alone, sgd, together(world), world * BATCH, giving)
    assert_close(model.get_weights(), alone.get_weights(), 2e-5)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=2e-5)


def test_fit_with_all_callbacks_equals_one_process(addresses: list[str], tmp_path: Path) -> None:
    outcomes = run_ranks(WORLD, _training, addresses, "training", str(tmp_path), timeout=PATIENCE)
    assert outcomes[0] == outcomes[1]
