"""JAX: a jitted training step over two ranks, several local devices, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frameworks.imports import import_jax, text_of
from tests.support.counters import bytes_taken
from tests.support.digits import PATIENCE
from tests.support.frameworks import needs
from tests.support.ranks import join, run_ranks

pytestmark = [needs("jax"), pytest.mark.timeout(300)]
WORLD = 2


def _many_cases(rank: int, world: int, addresses: list[str], job: str) -> dict[str, str]:
    jax, ours = import_jax(devices=2)
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
    kinds = (jax.errors.JaxRuntimeError, ValueError, NotImplementedError)
    return text_of(kinds, lambda: jax.block_until_ready(call()))


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
    for wire, size in (("bfloat16", 1024 * 2), ("e3m0", 4 * 132)):
        before = bytes_taken(group)
        narrow = ours.all_reduce_tree(np.full(1024, mine, np.float32), group, wire_dtype=wire)
        assert (narrow.dtype, float(narrow[0])) == (np.float32, 1.5)
        assert bytes_taken(group) - before == WORLD * size
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
        assert "MismatchError" in said["mismatch"] and "key 'step' round 0" in said["mismatch"]
        assert "do not support JVP" in said["derivative"]
        for how in ("shard_map", "pmap"):
            assert "over 'local'" in said[how] and "jax.lax.pmean" in said[how]
