"""TensorFlow without Keras' fit: the tape in a tf.function, the order of calls, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reducer_client import MismatchError
from tests.frameworks.imports import import_tensorflow, text_of
from tests.support.counters import bytes_taken
from tests.support.digits import PATIENCE
from tests.support.frameworks import needs
from tests.support.ranks import join, run_ranks

pytestmark = [needs("tensorflow"), pytest.mark.timeout(300)]
WORLD = 2


def _many_cases(rank: int, world: int, addresses: list[str], job: str) -> dict[str, Any]:
    tf, ours = import_tensorflow()
    with join(rank, world, addresses, job) as group:
        _check_values(tf, ours, group)
        _check_derivatives(tf, ours, group)
        _check_order(tf, ours, group)
        _check_retraced_on_one_rank(tf, ours, group)
        return {
            "xla": text_of(NotImplementedError, lambda: _in_xla(tf, ours, group)),
            "eager": text_of(MismatchError, lambda: _mismatched(tf, ours, group)),
            "graph": text_of(
                tf.errors.OpError, lambda: tf.function(lambda: _mismatched(tf, ours, group))()
            ),
        }


def _in_xla(tf: Any, ours: Any, group: Any) -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return tf.cond(x[0] > 0, lambda: ours.all_reduce(x, group), lambda: x)

    compiled(tf.ones(3))


def _mismatched(tf: Any, ours: Any, group: Any) -> Any:
    return ours.all_reduce(tf.ones(3, tf.float32 if group.rank else tf.float64), group, key="step")


def _check_values(tf: Any, ours: Any, group: Any) -> None:
    """Eagerly and in a graph, of every kind of tensor; ranks hold 1 and 2 times the values."""
    mine = group.rank + 1
    tensors = [
        tf.constant([0.5, 1.0]) * mine,
        tf.constant([[1, 2], [3, 4]], tf.int64) * mine,
        tf.cast(tf.range(4) * mine, tf.bfloat16),
        tf.zeros((0, 3)),
        tf.IndexedSlices(tf.ones((1, 2)) * mine, tf.constant([group.rank]), tf.constant([3, 2])),
        tf.constant(2.0, tf.float16) * mine,
    ]
    wanted = [[1.5, 3.0], [[3, 6], [9, 12]], [0, 3, 6, 9], np.zeros((0, 3)), None, 6.0]
    wanted[4] = [[1, 1], [2, 2], [0, 0]]
    in_graph = tf.function(lambda: ours.all_reduce_many(tensors, group))
    for reduced in (ours.all_reduce_many(tensors, group), in_graph()):
        for tensor, given, want in zip(reduced, tensors, wanted, strict=True):
            assert tensor.dtype == given.dtype
            np.testing.assert_array_equal(np.asarray(tensor, np.float64), want)
    assert float(ours.all_reduce(tf.constant(float(mine)), group, op="max")) == 2.0
    assert ours.all_reduce_many([], group) == []
    for wire, size in (("bfloat16", 1024 * 2), ("e3m0", 4 * 132)):
        before = bytes_taken(group)
        narrow = ours.all_reduce(tf.fill((1024,), float(mine)), group, wire_dtype=wire)
        assert (narrow.dtype, float(narrow[0])) == (tf.float32, 3.0)
        assert bytes_taken(group) - before == WORLD * size
    variable = tf.Variable([mine, mine])
    ours.broadcast_variables([variable], group, root=1)
    assert variable.numpy().tolist() == [2, 2]


def _check_derivatives(tf: Any, ours: Any, group: Any) -> None:
    """Of the sum over ranks of w(rank) * x, the derivative at each rank is w(0) + w(1)."""
    x = tf.Variable(3.0)

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            y = ours.all_reduce(x, group) * float(group.rank + 1)
        return tape.gradient(y, x)

    assert float(gradient()) == float(tf.function(gradient)()) == 3.0


def _check_order(tf: Any, ours: Any, group: Any) -> None:
    """Independent calls whose inputs are ready in another order on each rank."""
    slow, quick = tf.random.uniform((1200, 1200)), tf.ones((2, 2))
    scale = tf.Variable(1.0)
    late = [slow, quick] if group.rank == 0 else [quick, slow]

    @tf.function
    def nested(x: Any) -> Any:  # holds a variable, which TensorFlow orders apart from the rest
        return ours.all_reduce(tf.linalg.trace(x @ x) * 0.0 + scale + tf.zeros(3), group)

    @tf.function
    def step(first: Any, second: Any) -> Any:
        one = nested(first)
        two = ours.all_reduce(tf.linalg.trace(second @ second) * 0.0 + tf.ones(5), group)
        looped = tf.zeros(7)
        for _ in tf.range(2):
            looped += ours.all_reduce(tf.ones(7) * scale, group)
        return one, two, looped

    for _ in range(5):
        one, two, looped = step(*late)
        assert [one.shape, two.shape, looped.shape] == [3, 5, 7]
        for tensor, want in ((one, 2.0), (two, 2.0), (looped, 4.0)):
            np.testing.assert_array_equal(tensor.numpy(), want)


def _check_retraced_on_one_rank(tf: Any, ours: Any, group: Any) -> None:
    """The last batch of one rank is smaller: it traces the step anew, and still meets the other."""

    @tf.function
    def step(x: Any) -> Any:
        return ours.all_reduce(tf.reduce_sum(x, axis=0), group)

    for rows in (4, 3 if group.rank else 4, 4):
        step(tf.ones((rows, 2)))
    assert step.experimental_get_tracing_count() == 1 + group.rank


def test_values_order_and_errors(addresses: list[str]) -> None:
    said = run_ranks(WORLD, _many_cases, addresses, "many", timeout=PATIENCE)
    for rank in range(WORLD):
        assert "use model.compile(jit_compile=False)" in said[rank]["xla"]
        for round_, how in enumerate(("eager", "graph")):
            assert "float32" in said[rank][how] and "float64" in said[rank][how]
            assert f"key 'step' round {round_}" in said[rank][how]
        assert "MismatchError" in said[rank]["graph"]
