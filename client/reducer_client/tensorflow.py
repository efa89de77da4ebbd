"""TensorFlow: tensors and gradients reduced through a group, eagerly and in tf.function.

with reducer_client.tensorflow.DistributedGradientTape(tf.GradientTape(), group) as tape:
    loss = ...
gradients = tape.gradient(loss, variables)  # the mean over all ranks

In a tf.function the calls of a group run one after the other, in the order of the program, on every
rank: TensorFlow would start independent ones in any order, and a rank that waits in one call cannot
submit the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_or_end
from reducer_client.local_gradients import LocalVariables

__all__ = ["DistributedGradientTape", "all_reduce", "all_reduce_many", "broadcast_variables"]

# A variable of each group that its calls write before and after: what TensorFlow orders them by.
# (Calls without a resource are ordered too, but not with functions and loops that hold one.)
_turns: weakref.WeakKeyDictionary[object, Any] = weakref.WeakKeyDictionary()


def all_reduce(
    tensor: Any,
    group: Group,
    op: Op = "sum",
    *,
    key: str | None = None,
    wire_dtype: WireDtype | None = None,
) -> Any:
    """Reduce a tensor over all ranks; as `all_reduce_many` of one."""
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
    """Reduce tensors over all ranks, in few rounds; all ranks, with the same shapes and dtypes.

    All ranks must make the calls of a group in the same order. Of sum and mean the derivative is
    the same reduction.

    Args:
        tensors: tensors, variables or IndexedSlices, which are made dense.
        fusion_threshold: bytes; the tensors of a dtype travel together up to there.
        key: names the rounds, in errors and timelines too; the default is shared by all calls.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: how float32 tensors travel.

    Returns:
        Tensors of the same shapes and dtypes, the same bits on every rank.

    Raises:
        ReducerError: one of its children, eagerly. In a tf.function TensorFlow makes of it a
            tf.errors.OpError with the text.
        NotImplementedError: in a function that XLA compiles.
    """

    def reduce(*arrays: Array) -> list[Array]:
        work = group.all_reduce_many(arrays, op, fusion_threshold, key, wire_dtype)
        return wait_or_end(group, work)

    def call(*dense: Any) -> list[Any]:
        return call_in_order(group, reduce, dense, [tensor.shape for tensor in dense])

    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not dense:
        return []
    return own_derivative(call, dense) if op in ("sum", "mean") else call(*dense)


class ReducedTape:
    """A tf.GradientTape whose `gradient` is reduced; all else is the tape's own.

    Args:
        tape: what records.
        reduce: from a list of gradients to their reductions.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tape.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """As the tape's own, reduced over all ranks in one call.

        A None, where a source is not connected, stays None: it must be None on every rank.
        """
        gradients = self._tape.gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(gradients)
        reduced = self._local.reduce_others(flat, tf.nest.flatten(sources), self._reduce)
        return tf.nest.pack_sequence_as(gradients, reduced)


class DistributedGradientTape(ReducedTape):
    """A tf.GradientTape whose `gradient` is that of all ranks; all else is the tape's own.

    Args:
        tape: what records.
        op: ``"mean"`` or ``"sum"``, for example.
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
    """Give all ranks the root's values, byte for byte; outside of tf.function.

    Raises:
        ReducerError: one of its children.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("broadcast_variables in a tf.function: call it once, outside")
    works = [group.broadcast(variable.numpy(), root) for variable in variables]
    for variable, work in zip(variables, works, strict=True):
        variable.assign(wait_or_end(group, work))


def call_in_order(
    owner: object,
    function: Callable[..., Sequence[Array]],
    tensors: Sequence[Any],
    shapes: Any,
    dtypes: Sequence[Any] | None = None,
) -> list[Any]:
    """Call a function of arrays on the values of tensors; an owner's calls keep program order.

    Args:
        owner: whose calls come one after the other; anything that can be referred to weakly.
        shapes: the results' shapes, as far as they are known.
        dtypes: the results' dtypes; by default the tensors' dtypes.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(array) for array in function(*(t.numpy() for t in tensors))]
    _refuse_what_cannot_run()
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


def own_derivative(call: Callable[..., list[Any]], tensors: Sequence[Any]) -> list[Any]:
    """Call, and let the same call turn the results' gradients into the inputs' gradients."""
    return with_derivative(call, call, tensors)


def with_derivative(
    call: Callable[..., list[Any]], back: Callable[..., list[Any]], tensors: Sequence[Any]
) -> list[Any]:
    """Call, and let ``back`` turn the results' gradients into the inputs' gradients."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types here
    def differentiable(*inputs: Any) -> tuple[list[Any], Any]:
        return call(*inputs), back

    return list(differentiable(*tensors))


def _refuse_what_cannot_run() -> None:
    """TensorFlow would fail later, with a text that names neither cause nor cure."""
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
