"""TensorFlow: reduces tensors and gradients through a group, eagerly and in tf.function.

with reducer_client.tensorflow.DistributedGradientTape(tf.GradientTape(), group) as tape:
    loss = ...
gradients = tape.gradient(loss, variables)  # the mean over all ranks

In a tf.function the calls of a group run one after another in program order. Without this rule
TensorFlow could start independent calls in different orders on different ranks, and the ranks would
wait for each other forever.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_all_or_end, wait_or_end
from reducer_client.local_variables import LocalVariables

__all__ = ["DistributedGradientTape", "all_reduce", "all_reduce_many", "broadcast_variables"]

# One variable per group. Each call writes it before and after, and TensorFlow orders operations on
# the same resource. (TensorFlow also orders stateful operations without a resource, but not
# relative to functions and loops that contain one.)
_turns: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()


def all_reduce(
    tensor: Any,
    group: Group,
    op: Op = "sum",
    *,
    key: str | None = None,
    wire_dtype: WireDtype | None = None,
) -> Any:
    """Reduce one tensor over all ranks, as `all_reduce_many` does."""
    return all_reduce_many([tensor], group, op, key=key, wire_dtype=wire_dtype)[0]


def all_reduce_many(
    tensors: Sequence[Any],
    group: Group,
    op: Op = "sum",
    *,
    fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
    key: str | None = None,
    wire_dtype: WireDtype | None = None,
) -> list[Any]:
    """Reduce tensors over all ranks, packed into fusion buffers.

    All ranks must make the calls of a group in the same order, with the same shapes and dtypes. The
    derivative of sum and mean is the same reduction of the gradients.

    Args:
        tensors: tensors, variables or IndexedSlices. IndexedSlices are converted to dense tensors.
        op: as for ``Group.all_reduce``.
        fusion_threshold: maximum size in bytes of a fusion buffer, which holds tensors of one
            dtype.
        key: key of the rounds; errors and timelines show it. By default the client chooses a key.
        wire_dtype: the dtype in which float32 tensors are sent, as for `Group.all_reduce`.

    Returns:
        Tensors with the shapes and dtypes of the inputs; the same bits on every rank.

    Raises:
        TypeError: a dtype that cannot be reduced, or not with this ``op`` or ``wire_dtype``.
        ReducerError: a subclass, if a round or the group failed. In a tf.function TensorFlow raises
            a tf.errors.OpError with the text instead.
        NotImplementedError: in a function that XLA compiles, or in a graph of TensorFlow 1.
    """

    def reduce(*arrays: Array) -> list[Array]:
        return wait_or_end(
            group, lambda: group.all_reduce_many(arrays, op, fusion_threshold, key, wire_dtype)
        )

    def call(*dense: Any) -> list[Any]:
        return call_in_order(group, reduce, dense, [tensor.shape for tensor in dense])

    dense = as_dense(tensors)
    if not dense:
        return []
    return with_derivative(call, call, dense) if op in ("sum", "mean") else call(*dense)


class ReducedTape:
    """Wraps a tf.GradientTape and reduces the result of `gradient`.

    All other attributes are the tape's.

    Args:
        tape: the tf.GradientTape.
        reduce: function from a list of gradients to the list of reduced gradients.
        local: sources whose gradients are not reduced.
    """

    def __init__(
        self,
        tape: Any,
        reduce: Callable[[list[Any]], list[Any]],
        local: LocalVariables | None = None,
    ) -> None:
        self._tape = tape
        self._reduce = reduce
        self._local = LocalVariables() if local is None else local

    def __enter__(self) -> Self:
        self._tape.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._tape.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """The tape's gradients, reduced over all ranks in one call.

        The gradient of an unconnected source is None; the source must be unconnected on all ranks.
        """
        gradients = self._tape.gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(gradients)
        reduced = self._local.reduce_others(flat, tf.nest.flatten(sources), self._reduce)
        return tf.nest.pack_sequence_as(gradients, reduced)


class DistributedGradientTape(ReducedTape):
    """Wraps a tf.GradientTape; `gradient` returns the mean gradient of all ranks.

    All other attributes are the tape's.

    Args:
        tape: the tf.GradientTape.
        group: the group whose ranks train together.
        op: the reduction, ``"mean"`` by default.
        fusion_threshold, key, wire_dtype: as for `all_reduce_many`, whose errors `gradient` raises.
    """

    def __init__(
        self,
        tape: Any,
        group: Group,
        op: Op = "mean",
        *,
        fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
        key: str | None = None,
        wire_dtype: WireDtype | None = None,
    ) -> None:
        options: dict[str, Any] = {"fusion_threshold": fusion_threshold, "key": key}
        options["wire_dtype"] = wire_dtype
        super().__init__(tape, lambda gradients: all_reduce_many(gradients, group, op, **options))


def broadcast_variables(variables: Sequence[Any], group: Group, root: int = 0) -> None:
    """Give all ranks the root's values of the variables, byte for byte.

    Raises:
        RuntimeError: the call is in a tf.function.
        ValueError: ``root`` is not a rank.
        ReducerError: a subclass, if a round or the group failed.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("broadcast_variables in a tf.function: call it outside, before training")
    sources = [variable.numpy() for variable in variables]
    received = wait_all_or_end(group, lambda: [group.broadcast(s, root) for s in sources])
    for variable, array in zip(variables, received, strict=True):
        variable.assign(array)


def as_dense(tensors: Sequence[Any]) -> list[Any]:
    """Tensors for tensors, variables and IndexedSlices."""
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def call_in_order(
    owner: object,
    function: Callable[..., Sequence[Array]],
    tensors: Sequence[Any],
    shapes: Any,
    dtypes: Sequence[Any] | None = None,
) -> list[Any]:
    """Call ``function`` with the values of the tensors; the calls of an owner keep program order.

    Args:
        owner: the object whose calls run one after another. It must support weak references.
        function: takes and returns NumPy arrays.
        shapes: static shapes of the results; dimensions may be unknown.
        dtypes: dtypes of the results. By default the tensors' dtypes.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in function(*(t.numpy() for t in tensors))]
    _refuse_unsupported_graphs()
    if owner not in _turns:
        with tf.init_scope(), tf.device("/CPU:0"):
            _turns[owner] = tf.Variable(0, trainable=False, dtype=tf.int64, name="reducer_turn")
    turn = _turns[owner]
    with tf.control_dependencies([turn.assign_add(1)]):
        results = tf.numpy_function(function, tensors, dtypes or [t.dtype for t in tensors])
    with tf.control_dependencies(results):
        turn.assign_add(1)
    for tensor, shape in zip(results, shapes, strict=True):
        tensor.set_shape(shape)
    return list(results)


def with_derivative(
    call: Callable[..., list[Any]], back: Callable[..., list[Any]], tensors: Sequence[Any]
) -> list[Any]:
    """Apply ``call`` to the tensors. Its derivative is ``back`` on the results' gradients."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types here
    def differentiable(*inputs: Any) -> tuple[list[Any], Any]:
        return call(*inputs), back

    return list(differentiable(*tensors))


def _refuse_unsupported_graphs() -> None:
    """Raise NotImplementedError where TensorFlow would fail later without naming the cause."""
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:
        raise NotImplementedError(
            "reducer_client in a graph of TensorFlow 1: expected eager execution or a tf.function"
        )
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                raise NotImplementedError(
                    "reducer_client in a function that XLA compiles, which cannot call out to the "
                    "reducers: use model.compile(jit_compile=False) or tf.function without "
                    "jit_compile=True"
                )
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
