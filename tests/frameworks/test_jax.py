"""JAX: a jitted training step over two ranks, several local devices, errors."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest

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
from tests.support.ranks import Tell, join, run_ranks, start_ranks

pytestmark = [needs("jax"), pytest.mark.timeout(300)]
WORLD = 2
PARAMETERS = 64 * 10 + 10


def _import_jax(devices: int = 1) -> tuple[Any, Any]:
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    return importlib.import_module("jax"), importlib.import_module("reducer_client.jax")


def _train(jax: Any, reduce: Any, data: tuple[Any, Any], batch: int) -> tuple[list[float], Any]:
    """Softmax regression by gradient descent, jitted."""

    def mean_loss(parameters: Any, images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(images @ parameters["w"] + parameters["b"])
        return -scores[np.arange(batch), labels].mean()

    @jax.jit
    def step(parameters: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(mean_loss)(parameters, images, labels)
        gradients = reduce(gradients)
        return loss, jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients)

    parameters = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
    losses = []
    for start in range(0, len(data[1]), batch):
        loss, parameters = step(parameters, *(array[start : start + batch] for array in data))
        losses.append(float(loss))
    return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(parameters)]


def _jitted(rank: int, world: int, addresses: list[str], job: str) -> tuple[str, int]:
    jax, ours = _import_jax()
    with join(rank, world, addresses, job) as group:
        before = bytes_taken(group)
        losses, weights = _train(
            jax, lambda tree: ours.all_reduce_tree(tree, group), share(rank, world), BATCH
        )
        taken = bytes_taken(group) - before
        mean = group.all_reduce(np.array(losses), "mean").wait()
    expected, alone = _train(jax, lambda tree: tree, together(world), world * BATCH)
    assert_close(weights, alone)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    assert expected[-1] < 0.9 * expected[0]
    return digest(weights), taken


@needs("sklearn")
def test_a_jitted_step_equals_one_process_on_the_joined_batches(addresses: list[str]) -> None:
    outcomes = run_ranks(WORLD, _jitted, addresses, "jitted", timeout=PATIENCE)
    assert len(set(outcomes)) == 1
    assert outcomes[0][1] == WORLD * STEPS * PARAMETERS * 4


def _many_cases(rank: int, world: int, addresses: list[str], job: str) -> dict[str, str]:
    jax, ours = _import_jax(devices=2)
    with join(rank, world, addresses, job) as group:
        _check_values(jax, ours, group)
        _check_order(jax, ours, group)
        _check_local_devices(jax, ours, group)
        said = {
            "mismatch": _text_of(jax, lambda: _step(jax, ours, group, 3 + rank)),
            "derivative": _text_of(jax, lambda: jax.grad(_step_of(ours, group))(np.ones(3))),
            "shard_map": _text_of(jax, lambda: _on_each_device(jax, ours, group, "shard_map")),
            "pmap": _text_of(jax, lambda: _on_each_device(jax, ours, group, "pmap")),
        }
    assert "ClosedError" in _text_of(jax, lambda: _step(jax, ours, group, 3))
    return said


def _text_of(jax: Any, call: Any) -> str:
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError, NotImplementedError)) as caught:
        jax.block_until_ready(call())
    return str(caught.value)


def _step_of(ours: Any, group: Any) -> Any:
    return lambda x: ours.all_reduce_tree(x, group, key="step").sum()


def _step(jax: Any, ours: Any, group: Any, length: int) -> Any:
    return jax.jit(_step_of(ours, group))(np.ones(length, np.float32))


def _check_values(jax: Any, ours: Any, group: Any) -> None:
    mine = group.rank + 1
    tree = {
        "float": np.array([0.5, 1.0], np.float32) * mine,
        "bfloat16": jax.numpy.arange(4, dtype="bfloat16") * mine,
        "half": [jax.numpy.full((2, 2), 2.0, "float16") * mine],
        "int": np.array([1, 2], np.int32) * mine,
        "empty": np.zeros((0, 3), np.float32),
        "none": None,
    }
    for call in (ours.all_reduce_tree, jax.jit(ours.all_reduce_tree, static_argnums=(1, 2))):
        summed = call(tree, group, "sum")
        assert jax.tree.structure(summed) == jax.tree.structure(tree)
        for leaf, given in zip(jax.tree.leaves(summed), jax.tree.leaves(tree), strict=True):
            assert leaf.dtype == given.dtype
            wanted = np.asarray(given, np.float64) / mine * 3
            np.testing.assert_array_equal(np.asarray(leaf, np.float64), wanted)
    assert ours.all_reduce_tree({}, group) == {}
    before = bytes_taken(group)
    narrow = ours.all_reduce_tree(np.full(1000, mine, np.float32), group, wire_dtype="bfloat16")
    assert (narrow.dtype, float(narrow[0])) == (np.float32, 1.5)
    assert bytes_taken(group) - before == WORLD * 1000 * 2
    sent = ours.broadcast_tree({"a": jax.numpy.full(3, mine)}, group, root=1)
    assert sent["a"].tolist() == [2, 2, 2]


def _check_order(jax: Any, ours: Any, group: Any) -> None:
    """Independent calls, of two programs, whose inputs are ready in another order on each rank."""
    slow, quick = np.ones((700, 700), np.float32), np.ones((2, 2), np.float32)
    late = [slow, quick] if group.rank == 0 else [quick, slow]

    @jax.jit
    def step(first: Any, second: Any) -> Any:
        one = jax.numpy.zeros(3) + jax.numpy.trace(first @ first) * 0 + 1
        two = jax.numpy.zeros(5) + jax.numpy.trace(second @ second) * 0 + 1
        return [ours.all_reduce_tree(x, group, "sum") for x in (one, two)]

    @jax.jit
    def other(x: Any) -> Any:
        return ours.all_reduce_tree(x, group, "sum")

    results = [[*step(*late), other(np.ones(7, np.float32))] for _ in range(4)]
    assert all((np.asarray(x) == 2).all() for each in results for x in each)
    assert [x.shape for x in results[0]] == [(3,), (5,), (7,)]


def _check_local_devices(jax: Any, ours: Any, group: Any) -> None:
    """Gradients over a batch that is sharded over this process's two devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("local",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("local"))
    batch = jax.device_put(np.arange(8, dtype=np.float32) + group.rank, spread)
    assert len(batch.sharding.device_set) == 2

    @jax.jit
    def step(weight: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: (w * batch).mean())(weight)
        return ours.all_reduce_tree(gradient, group), ours.all_reduce_tree(batch, group)

    gradient, mean = step(1.0, batch)
    assert float(gradient) == 4.0
    np.testing.assert_array_equal(np.asarray(mean), np.arange(8) + 0.5)


def _on_each_device(jax: Any, ours: Any, group: Any, how: str) -> Any:
    def each(x: Any) -> Any:
        return ours.all_reduce_tree(x, group)

    if how == "pmap":
        return jax.pmap(each, axis_name="local")(np.ones((2, 3)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("local",))
    spec = jax.sharding.PartitionSpec("local")
    return jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec))(np.ones(4))


def test_values_order_local_devices_and_errors(addresses: list[str]) -> None:
    for said in run_ranks(WORLD, _many_cases, addresses, "many", timeout=PATIENCE):
        assert "MismatchError" in said["mismatch"] and "step/0" in said["mismatch"]
        assert "do not support JVP" in said["derivative"]
        for how in ("shard_map", "pmap"):
            assert "over 'local'" in said[how] and "jax.lax.pmean" in said[how]


def _lose_a_peer(rank: int, world: int, addresses: list[str], job: str, tell: Tell) -> str:
    jax, ours = _import_jax()
    with join(rank, world, addresses, job) as group:
        _step(jax, ours, group, 3)
        tell("stepped")
        if rank == 1:
            tell.hear()
        return _text_of(jax, lambda: _step(jax, ours, group, 3))


def test_a_lost_peer_is_named(addresses: list[str]) -> None:
    with start_ranks(WORLD, _lose_a_peer, addresses, "lost", talk=True) as ranks:
        for rank in range(WORLD):
            assert ranks.receive(rank, PATIENCE) == "stepped"
        ranks.kill(1)
        outcome = ranks.collect_one(0, 60)
    assert outcome.error is None, outcome.trace
    assert "PeerLostError" in outcome.value and "rank 1" in outcome.value
