"""JAX: reduces the leaves of a tree through a group, inside and outside of jit.

grads = reducer_client.jax.all_reduce_tree(grads, group)

The reduction is an ordered effect, so JAX neither drops, repeats nor reorders the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_all_or_end, wait_or_end

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
    """Reduce every leaf of a tree over all ranks.

    All ranks must call this in the same order, with trees of the same structure, shapes and dtypes.
    JAX keeps the program's order of the calls, also across several jitted functions. Leaves that
    are sharded over this process's devices are gathered first. The function has no derivative and
    does not work under vmap, so call it on gradients.

    Args:
        tree: a pytree of arrays or numbers.
        op: as for ``Group.all_reduce``.
        fusion_threshold: maximum size in bytes of a fusion buffer, which holds leaves of one dtype.
        key: key of the rounds; errors and timelines show it. By default the client chooses a key.
        wire_dtype: the dtype in which float32 leaves are sent, as for `Group.all_reduce`.

    Returns:
        A tree of JAX arrays with the shapes and dtypes of the leaves; the same bits on every rank.

    Raises:
        NotImplementedError: inside shard_map or pmap, where every local device would make the call.
        jax.errors.JaxRuntimeError: the text has the ReducerError, or the TypeError for a dtype that
            cannot be reduced. Under jit the error is raised where the program waits for the result.
            Do not use the state that the failed step returned.
    """
    _refuse_manual_axes()
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    arrays = [jnp.asarray(leaf) for leaf in leaves]

    def reduce(*parts: Array) -> list[Array]:
        return wait_or_end(
            group, lambda: group.all_reduce_many(parts, op, fusion_threshold, key, wire_dtype)
        )

    reduced = call_in_order(reduce, arrays, arrays)
    return jax.tree.unflatten(structure, reduced)


def broadcast_tree(tree: Any, group: Group, root: int = 0) -> Any:
    """Send the root's leaves to every rank, byte for byte. Call it outside of jit.

    Args:
        tree: a pytree of arrays, of the same structure, shapes and dtypes on all ranks.
        root: the rank whose values all ranks get.

    Returns:
        A tree of JAX arrays with the root's values.

    Raises:
        ValueError: ``root`` is not a rank.
        TypeError: a leaf holds Python objects.
        ReducerError: a subclass, if a round or the group failed.
    """
    leaves, structure = jax.tree.flatten(tree)
    sources = [np.asarray(leaf) for leaf in leaves]
    received = wait_all_or_end(group, lambda: [group.broadcast(s, root) for s in sources])
    return jax.tree.unflatten(structure, [jnp.asarray(array) for array in received])


def call_in_order(
    function: Callable[..., Sequence[Array]], arrays: Sequence[Any], like: Sequence[Any]
) -> list[Any]:
    """Call ``function`` with the values of the arrays, inside and outside of jit.

    JAX keeps the program's order of all calls.

    Args:
        function: takes and returns NumPy arrays.
        like: arrays of the shapes and dtypes of the results.
    """

    def call(*parts: Any) -> list[Array]:
        return list(function(*(np.asarray(part) for part in parts)))

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in like]
    # JAX may drop a pure_callback or run it twice.
    return list(io_callback(call, shapes, *arrays, ordered=True))


def _refuse_manual_axes() -> None:
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if axes:
        # The callbacks of the devices run concurrently, so a round could mix different shards.
        raise NotImplementedError(
            f"all_reduce_tree within shard_map or pmap over {', '.join(map(repr, axes))}: each "
            "local device would make its own call; reduce over the local devices first "
            "(jax.lax.pmean) and call all_reduce_tree outside, in the jit around it"
        )
