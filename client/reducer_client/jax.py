"""JAX: the leaves of a tree reduced through a group, inside and outside of jit.

grads = reducer_client.jax.all_reduce_tree(grads, group)

The reduction is an ordered effect of the program: JAX neither drops, repeats nor swaps the calls.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_or_end

__all__ = ["all_reduce_tree", "broadcast_tree"]


def all_reduce_tree(
    tree: Any,
    group: Group,
    op: Op = "mean",
    *,
    fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
    key: str | None = None,
    wire_dtype: WireDtype | None = None,
) -> Any:
    """Reduce every leaf over all ranks; all ranks, with trees of the same structure.

    Within a program the calls run in its order, also those of several jitted functions: all ranks
    must make them in the same order. Leaves that are sharded over this process's devices are
    gathered first. It has no derivative, and does not go under vmap: call it on gradients.

    Args:
        fusion_threshold: bytes; the leaves of a dtype travel together up to there.
        key: names the rounds, in errors and timelines too.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: how float32 leaves travel.

    Returns:
        A tree of arrays of the same shapes and dtypes, the same bits on every rank.

    Raises:
        NotImplementedError: within shard_map or pmap, where each local device would call.
        jax.errors.JaxRuntimeError: with the text of the ReducerError. Under jit it comes where the
            result is waited for; the state that the step returned must not be used.
    """
    _refuse_manual_axes()
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    arrays = [jnp.asarray(leaf) for leaf in leaves]

    def reduce(*parts: Any) -> list[Array]:
        work = group.all_reduce_many(
            [np.asarray(part) for part in parts], op, fusion_threshold, key, wire_dtype
        )
        return wait_or_end(group, work)

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    # Not pure_callback: that may be dropped, or run twice.
    reduced = io_callback(reduce, shapes, *arrays, ordered=True)
    return jax.tree.unflatten(structure, reduced)


def broadcast_tree(tree: Any, group: Group, root: int = 0) -> Any:
    """The root's leaves on every rank, byte for byte; outside of jit. Typically before training.

    Raises:
        ReducerError: one of its children.
    """
    leaves, structure = jax.tree.flatten(tree)
    works = [group.broadcast(np.asarray(leaf), root) for leaf in leaves]
    return jax.tree.unflatten(structure, [jnp.asarray(wait_or_end(group, work)) for work in works])


def _refuse_manual_axes() -> None:
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if axes:
        # Their callbacks run side by side: one rank's first shard would meet another's second.
        raise NotImplementedError(
            f"all_reduce_tree within shard_map or pmap over {', '.join(map(repr, axes))}: each "
            "local device would call it on its own; reduce over the local devices first "
            "(jax.lax.pmean) and call all_reduce_tree outside, in the jit around it"
        )
