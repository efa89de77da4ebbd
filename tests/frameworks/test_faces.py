"""What the faces of frameworks do alike: train as one process does, and name a lost peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from reducer_client import Group
from tests.frameworks.imports import import_jax, import_keras, import_tensorflow, text_of
from tests.support.counters import bytes_taken
from tests.support.digits import BATCH, PATIENCE, STEPS, assert_close, digest, share, together
from tests.support.frameworks import needs
from tests.support.ranks import Tell, join, run_ranks, start_ranks

pytestmark = pytest.mark.timeout(300)
WORLD = 2
PARAMETERS = 64 * 10 + 10
Losses = list[float]
Train = Callable[[Group | None, tuple[Any, Any], int], tuple[Losses, list[Any]]]


class Face(NamedTuple):
    """What a rank does through a framework that it has imported.

    Attributes:
        train: softmax regression by gradient descent in compiled steps, over the ranks of a group
            or alone; the losses and the weights.
        steps: calls its argument after a first reduction, and then reduces again.
        error: what the framework makes of a failed reduction in a compiled step.
    """

    train: Train | None
    steps: Callable[[Group, Callable[[], None]], None]
    error: type[Exception] | tuple[type[Exception], ...]


def _jax() -> Face:
    jax, ours = import_jax()

    def train(group: Group | None, data: tuple[Any, Any], batch: int) -> tuple[Losses, list[Any]]:
        def mean_loss(parameters: Any, images: Any, labels: Any) -> Any:
            scores = jax.nn.log_softmax(images @ parameters["w"] + parameters["b"])
            return -scores[np.arange(batch), labels].mean()

        @jax.jit
        def step(parameters: Any, images: Any, labels: Any) -> Any:
            loss, gradients = jax.value_and_grad(mean_loss)(parameters, images, labels)
            if group is not None:
                gradients = ours.all_reduce_tree(gradients, group)
            return loss, jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients)

        parameters = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
        losses = []
        for start in range(0, len(data[1]), batch):
            loss, parameters = step(parameters, *(array[start : start + batch] for array in data))
            losses.append(float(loss))
        return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(parameters)]

    def steps(group: Group, between: Callable[[], None]) -> None:
        step = jax.jit(lambda x: ours.all_reduce_tree(x, group))
        jax.block_until_ready(step(np.ones(3, np.float32)))
        between()
        jax.block_until_ready(step(np.ones(3, np.float32)))

    return Face(train, steps, jax.errors.JaxRuntimeError)


def _tensorflow() -> Face:
    tf, ours = import_tensorflow()

    def train(group: Group | None, data: tuple[Any, Any], batch: int) -> tuple[Losses, list[Any]]:
        weight, bias = tf.Variable(tf.zeros((64, 10))), tf.Variable(tf.zeros(10))
        unused = tf.Variable(1.0)

        @tf.function
        def step(images: Any, labels: Any) -> Any:
            tape = tf.GradientTape()
            with tape if group is None else ours.DistributedGradientTape(tape, group) as tape:
                logits = tf.matmul(images, weight) + bias
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, {"w": weight, "b": bias, "unused": unused})
            assert gradients["unused"] is None
            assert gradients["w"].shape == (64, 10)
            weight.assign_sub(0.5 * gradients["w"])
            bias.assign_sub(0.5 * gradients["b"])
            return loss

        parts = range(0, len(data[1]), batch)
        losses = [float(step(*(array[p : p + batch] for array in data))) for p in parts]
        return losses, [weight.numpy(), bias.numpy()]

    def steps(group: Group, between: Callable[[], None]) -> None:
        step = tf.function(lambda x: ours.all_reduce(x, group))
        step(tf.ones(3))
        between()
        step(tf.ones(3))

    return Face(train, steps, tf.errors.OpError)


def _keras() -> Face:
    keras = import_keras("tensorflow")
    from reducer_client.keras import DistributedOptimizer

    def steps(group: Group, between: Callable[[], None]) -> None:
        class Stop(keras.callbacks.Callback):  # type: ignore[misc]  # no types there
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                if batch == 3:
                    between()

        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
        optimizer = DistributedOptimizer(keras.optimizers.SGD(), group)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False)
        data = share(group.rank, group.world_size)
        model.fit(*data, batch_size=BATCH, verbose=0, callbacks=[Stop()])

    return Face(None, steps, Exception)


FACES: dict[str, Callable[[], Face]] = {"jax": _jax, "tensorflow": _tensorflow, "keras": _keras}
JAX = pytest.param("jax", marks=needs("jax", "sklearn"))
TENSORFLOW = pytest.param("tensorflow", marks=needs("tensorflow", "sklearn"))
KERAS = pytest.param("keras", marks=needs("keras", "tensorflow", "sklearn"))


def _train(rank: int, world: int, addresses: list[str], job: str, face: str) -> tuple[str, int]:
    train = FACES[face]().train
    assert train is not None
    with join(rank, world, addresses, job) as group:
        before = bytes_taken(group)
        losses, weights = train(group, share(rank, world), BATCH)
        taken = bytes_taken(group) - before
        mean = group.all_reduce(np.array(losses), "mean").wait()
    expected, alone = train(None, together(world), world * BATCH)
    assert_close(weights, alone)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    assert expected[-1] < 0.9 * expected[0]
    return digest(weights), taken


@pytest.mark.parametrize("face", [JAX, TENSORFLOW])
def test_steps_equal_one_process_on_the_joined_batches(addresses: list[str], face: str) -> None:
    outcomes = run_ranks(WORLD, _train, addresses, f"train-{face}", face, timeout=PATIENCE)
    assert len(set(outcomes)) == 1
    assert outcomes[0][1] == WORLD * STEPS * PARAMETERS * 4


def _lose_a_peer(
    rank: int, world: int, addresses: list[str], job: str, name: str, tell: Tell
) -> str:
    face = FACES[name]()

    def wait_for_the_end() -> None:
        tell("stepped")
        if rank == 1:
            tell.hear()

    with join(rank, world, addresses, job) as group:
        return text_of(face.error, lambda: face.steps(group, wait_for_the_end))


@pytest.mark.parametrize("face", [JAX, TENSORFLOW, KERAS])
def test_a_lost_peer_is_named(addresses: list[str], face: str) -> None:
    with start_ranks(WORLD, _lose_a_peer, addresses, f"lost-{face}", face, talk=True) as ranks:
        for rank in range(WORLD):
            assert ranks.receive(rank, PATIENCE) == "stepped"
        ranks.kill(1)
        outcome = ranks.collect_one(0, 60)
    assert outcome.error is None, outcome.trace
    assert "PeerLostError" in outcome.value and "rank 1" in outcome.value
