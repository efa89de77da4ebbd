"""Horovod's names for TensorFlow and Keras: operations, tape, optimizer, callbacks."""

from __future__ import annotations

import importlib
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks.imports import import_keras
from tests.frameworks.keras_models import fit, make_model, train_on_words
from tests.support.digits import BATCH, PATIENCE, STEPS, assert_close, digest, share, together
from tests.support.frameworks import needs
from tests.support.horovod_ranks import launched
from tests.support.ranks import run_ranks

pytestmark = [needs("keras", "tensorflow", "sklearn"), pytest.mark.timeout(300)]
WORLD = 2
EPOCHS = 3


def _start(rank: int, world: int, addresses: list[str], job: str) -> tuple[Any, Any, Any]:
    launched(rank, world, addresses, job)
    keras = import_keras("tensorflow")
    hvd = importlib.import_module("reducer_client.horovod.keras")
    assert "torch" not in sys.modules
    hvd.init()
    return hvd, importlib.import_module("reducer_client.horovod.tensorflow"), keras


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
            hvd.allreduce(tf.fill((2,), mine), compression=hvd.Compression.e3m0),
        ]

    wanted = [[3, 3], [6], 3, [1.5, 1.5], 2, 2, [[1, 1], [2, 2], [2, 2]], [1, 7], [1.5, 1.5]]
    for found in (reduce(), tf.function(reduce)()):
        for tensor, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(tensor, np.float64), want)
        assert [found[1].dtype, found[3].dtype] == [tf.bfloat16, tf.float32]
    for check in CHECKS:
        check(rank, hvd, tf)
    hvd.shutdown()


def _check_movements(rank: int, hvd: Any, tf: Any) -> None:
    rows = tf.constant([[1], [2], [3]], tf.int16) * (10 if rank else 1)

    def move() -> Any:
        exchanged = hvd.alltoall(rows, [1, 2])
        halves = hvd.alltoall(rows[:2])
        gathered = hvd.grouped_allgather([rows, tf.constant([float(rank)])])
        summed = hvd.reducescatter(tf.cast(rows, tf.float32), op=hvd.Sum)
        both = hvd.grouped_reducescatter([tf.constant([2.0, 4.0]), tf.constant([[6], [8]])])
        return [*exchanged, halves, *gathered, summed, *both]

    every = [[1], [2], [3], [10], [20], [30]]
    wanted = (
        [[[1], [10]], [1, 1], [[1], [10]], every, [0, 1], [[11], [22]], [2], [[6]]],
        [[[2], [3], [20], [30]], [2, 2], [[2], [20]], every, [0, 1], [[33]], [4], [[8]]],
    )
    for found in (move(), tf.function(move)()):
        for tensor, want in zip(found, wanted[rank], strict=True):
            np.testing.assert_array_equal(np.asarray(tensor), want)


def _check_derivatives(rank: int, hvd: Any, tf: Any) -> None:
    """By Horovod's conventions: the ranks' mean where data moves, the sum where data is summed."""
    x = tf.Variable([[1.0], [2.0]] if rank else [[1.0], [2.0], [3.0], [4.0]])
    even = tf.Variable([[1.0], [2.0]])
    # One row more for each further row of the result; rank 1's are ten times as much.
    slope = tf.reshape(tf.range(1.0, 7.0), (6, 1)) * (10 if rank else 1)

    def gradients() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            results = [
                (x, hvd.allgather(x) * slope),
                (x, hvd.grouped_allgather([x * 2.0, x])[1] * slope),
                (even, hvd.broadcast(even, 1) * slope[:2]),
                (even, hvd.alltoall(even, [1, 1])[0] * slope[:2]),
                (even, hvd.reducescatter(even, op=hvd.Sum) * slope[:1]),
                (even, hvd.grouped_reducescatter([even], op=hvd.Average)[0] * slope[:1]),
                (even, hvd.allreduce(even, op=hvd.Sum) * slope[:2]),
            ]
        return [tape.gradient(result, source) for source, result in results]

    own = [[27.5], [33.0]] if rank else [[5.5], [11.0], [16.5], [22.0]]
    wanted = [
        own,
        own,
        [[5.5], [11.0]] if rank else [[0], [0]],
        [[2], [20]] if rank else [[1], [10]],
        [[2], [20]],
        [[1], [10]],
        [[11], [22]],
    ]
    for found in (gradients(), tf.function(gradients)()):
        for gradient, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(gradient, want)


def _check_scalars(rank: int, hvd: Any, tf: Any) -> None:
    def find() -> Any:
        return [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]

    for found in (find(), tf.function(find)()):
        assert [(int(x), x.dtype) for x in found] == [(n, tf.int32) for n in (rank, 2, rank, 2)]
    alone = hvd.add_process_set([1])
    assert int(hvd.size_op(alone.process_set_id)) == 1  # on rank 0, too, which is not in the set
    hvd.remove_process_set(alone)
    with pytest.raises(ValueError, match="process_set_id=1"):
        hvd.size_op(1)
    assert not any(
        (hvd.ccl_built(), hvd.mpi_built(), hvd.gloo_built(), hvd.mpi_threads_supported())
    )


def _check_slices(rank: int, hvd: Any, tf: Any) -> None:
    """Slices without a dense shape, and gradients of rows that a rank has looked up."""
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0 + rank]]), tf.constant([rank, 1]))
    several = [tf.constant(1.0), slices, tf.IndexedSlices(tf.constant([4]), tf.constant([rank]))]

    def reduce() -> Any:
        return [hvd.allreduce(slices), *hvd.grouped_allreduce(several, op=hvd.Sum)]

    for mean, number, total, whole in (reduce(), tf.function(reduce)()):
        np.testing.assert_array_equal(mean.values, [[0.5], [1.0], [0.5], [1.5]])
        np.testing.assert_array_equal(total.values, [[1.0], [2.0], [1.0], [3.0]])
        assert mean.indices.numpy().tolist() == total.indices.numpy().tolist() == [0, 1, 1, 1]
        assert (float(number), whole.values.numpy().tolist()) == (2.0, [4, 4])
    for refused in ({"op": hvd.Max}, {"prescale_factor": 0.5}):
        with pytest.raises(NotImplementedError, match="sparse_as_dense"):
            hvd.allreduce(slices, **refused)
    table = tf.Variable([[1.0], [2.0], [3.0]])
    for as_dense in (False, True):
        tape = hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=as_dense)
        with tape:
            loss = tf.reduce_sum(tf.gather(table, [0, 1 + rank]))
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices) is not as_dense
        np.testing.assert_array_equal(tf.convert_to_tensor(gradient), [[1.0], [0.5], [0.5]])


def _check_tapes(rank: int, hvd: Any, tf: Any) -> None:
    mine = float(rank + 1)
    weight, local = tf.Variable(3.0), tf.Variable(5.0)
    with hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0) as tape:
        loss = weight * mine
    assert float(tape.gradient(loss, weight)) == 1.5
    for scale in (True, False):
        plain = tf.GradientTape(persistent=True)
        tape = hvd.DistributedGradientTape(plain, scale_local_gradients=scale)
        tape.register_local_source(local)
        with tape:
            loss = (weight + local) * mine
        kept, reduced = tape.get_local_and_global_gradients(loss, [weight, local])
        assert [(source is local, float(g)) for source, g in kept] == [
            (True, mine / 2 if scale else mine)
        ]
        assert [(source is weight, float(g)) for source, g in reduced] == [(True, 1.5)]
    with pytest.raises(ValueError, match="expected Keras layers, got Resource"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[weight])
    alone = hvd.add_process_set([1])
    with hvd.DistributedGradientTape(tf.GradientTape(), process_set=alone) as tape:
        loss = weight * mine
    assert float(tape.gradient(loss, weight)) == mine
    hvd.remove_process_set(alone)


def _check_variables_and_objects(rank: int, hvd: Any, tf: Any) -> None:
    weights = [tf.Variable(float(rank)), tf.Variable([rank, rank + 1])]
    hvd.broadcast_variables(weights, root_rank=1)
    assert [w.numpy().tolist() for w in weights] == [1.0, [1, 2]]
    weights[0].assign(float(rank))
    (sent,) = tf.function(lambda: hvd.broadcast_(weights[:1], root_rank=1))()
    assert float(sent) == float(weights[0]) == 1.0
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * rank) == ["", "x"]


def _check_errors(rank: int, hvd: Any, tf: Any) -> None:
    """Eagerly of Horovod's class and of TensorFlow's; in a graph of TensorFlow's alone."""
    for kind in (hvd.HorovodInternalError, tf.errors.FailedPreconditionError):
        with pytest.raises(kind, match=r"float32.*float64|float64.*float32") as caught:
            hvd.allreduce(tf.ones(2, tf.float64 if rank else tf.float32))
    assert caught.value.reason == "mismatch" and "float64" in caught.value.message
    assert type(pickle.loads(pickle.dumps(caught.value))) is type(caught.value)
    for kind in (ValueError, tf.errors.InvalidArgumentError):
        with pytest.raises(kind, match="expected numbers that sum to 3"):
            hvd.alltoall(tf.ones(3), [1, 1])
    failing = tf.function(lambda: hvd.allreduce(tf.ones(2 + rank), name="shapes"))
    with pytest.raises(tf.errors.OpError, match=r"HorovodInternalError[\s\S]*shapes"):
        failing()
    with tf.Graph().as_default(), pytest.raises(NotImplementedError, match="TensorFlow 1"):
        hvd.allreduce(tf.ones(2))
    with pytest.raises(RuntimeError, match="no global variables"):
        hvd.broadcast_global_variables(0)


CHECKS = (
    _check_movements,
    _check_derivatives,
    _check_scalars,
    _check_slices,
    _check_tapes,
    _check_variables_and_objects,
    _check_errors,
)


def test_operations(addresses: list[str]) -> None:
    run_ranks(WORLD, _operations, addresses, "operations", timeout=PATIENCE)


def _training(rank: int, world: int, addresses: list[str], job: str, folder: str) -> Any:
    hvd, _, keras = _start(rank, world, addresses, job)
    warned: list[str] = []
    logging.getLogger("reducer_client").addFilter(lambda r: bool(warned.append(r.getMessage())))
    rates: list[float] = []
    model = make_model(keras, rank)
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
    options = {"epochs": EPOCHS, "callbacks": callbacks}
    history = fit(keras, model, optimizer, share(rank, world), BATCH, **options)
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
    _check_local_layers(rank, hvd, keras)
    shared = _check_shared_rows(rank, world, hvd, keras)
    hvd.shutdown()
    return digest(model.get_weights() + shared), history


def _check_local_layers(rank: int, hvd: Any, keras: Any) -> None:
    """The gradients of a local layer stay each rank's own."""
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    with pytest.raises(ValueError, match="not built"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=layers)
    for layer in layers:
        layer.build((None, 1))
    for scale, local in ((True, 1 - (rank + 1) / 2), (False, -rank)):
        for layer in layers:
            layer.kernel.assign([[1.0]])
        optimizer = hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=layers[1], scale_local_gradients=scale
        )
        gradients = [keras.ops.full((1, 1), rank + 1.0)] * 2
        optimizer.apply_gradients(zip(gradients, [layer.kernel for layer in layers], strict=True))
        assert [float(layer.kernel[0][0]) for layer in layers] == [-0.5, local]
        optimizer.apply(gradients)
        assert [float(layer.kernel[0][0]) for layer in layers] == [-2.0, 2 * local - 1]


def _check_shared_rows(rank: int, world: int, hvd: Any, keras: Any) -> list[Any]:
    """An Embedding's gradients: slices that are gathered, or dense sums."""

    plain = keras.optimizers.SGD(0.1)
    expected = train_on_words(keras, plain, together(world), world * BATCH)
    found: list[Any] = []
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), sparse_as_dense=as_dense)
        found += train_on_words(keras, optimizer, share(rank, world), BATCH)
        assert_close(found[-len(expected) :], expected, 2e-5)
    return found


def _check_alone(keras: Any, model: Any, history: Any, rates: list[float], world: int) -> None:
    """One process, with the rates that the ranks had."""
    alone = make_model(keras, 0)
    given = iter(rates)

    def give(batch: int, logs: Any) -> None:
        alone.optimizer.learning_rate = next(given)

    sgd = keras.optimizers.SGD(0.2, momentum=0.5)
    giving = [keras.callbacks.LambdaCallback(on_train_batch_begin=give)]
    options = {"epochs": EPOCHS, "callbacks": giving}
    expected = fit(keras, alone, sgd, together(world), world * BATCH, **options)
    assert_close(model.get_weights(), alone.get_weights(), 2e-5)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=2e-5)


def test_fit_with_all_callbacks_equals_one_process(addresses: list[str], tmp_path: Path) -> None:
    outcomes = run_ranks(WORLD, _training, addresses, "training", str(tmp_path), timeout=PATIENCE)
    assert outcomes[0] == outcomes[1]
