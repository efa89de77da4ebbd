"""All-reduce: optimizers that apply the mean gradient of all ranks, and callbacks for training."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype, check_wire_dtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_all_or_end, wait_or_end
from reducer_client.local_variables import LocalVariables

Reduce = Callable[[list[Any]], Sequence[Any]]

_optimizer_numbers: weakref.WeakKeyDictionary[Group, itertools.count[int]] = (
    weakref.WeakKeyDictionary()
)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    group: Group,
    op: Op = "mean",
    *,
    fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
    wire_dtype: WireDtype | None = None,
    key: str | None = None,
) -> Any:
    """Make an optimizer of the same class and settings that reduces its gradients over all ranks.

    ``apply`` reduces all gradients in one call. Clipping, weight decay and the update use the
    reduced gradients. The new optimizer copies the state of a built optimizer. Keras saves the new
    optimizer under the original class, so wrap it again after loading. Wrap a LossScaleOptimizer
    with this function, not the other way round.

    Args:
        optimizer: a Keras 3 optimizer. It is not changed and no longer needed.
        group: the group whose ranks train together.
        op: as for ``Group.all_reduce``.
        fusion_threshold: maximum size in bytes of a fusion buffer, which holds gradients of one
            dtype.
        wire_dtype: the dtype in which float32 gradients are sent, as for `Group.all_reduce`.
        key: prefix of the keys of the rounds. By default the number of this optimizer within the
            group, so all ranks must make their optimizers in the same order.

    Raises:
        TypeError: the argument is not a Keras 3 optimizer, or is distributed already.
        ValueError: the backend of Keras is not tensorflow, jax or torch, or an unknown wire_dtype.
        ReducerError: from ``apply``, a subclass, if a round or the group failed. JAX, and
            TensorFlow in compiled code, raise their own error with the text.
    """
    check_wire_dtype(wire_dtype)
    if key is None:
        key = f"keras{next(_optimizer_numbers.setdefault(group, itertools.count()))}"
    options = {"fusion_threshold": fusion_threshold, "wire_dtype": wire_dtype, "key": key}
    return with_reduction(optimizer, _find_reduce(group, op, options))


def with_reduction(optimizer: Any, reduce: Reduce, local: LocalVariables | None = None) -> Any:
    """Make an optimizer of the same class, settings and state with reduced gradients.

    Args:
        reduce: function from the list of all gradients to the list of gradients to apply.
        local: variables whose gradients are not reduced.

    Raises:
        TypeError: the argument is not a Keras 3 optimizer, or is distributed already.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, _Reducing):
        raise TypeError(
            "expected an optimizer of Keras 3 that is not distributed yet, got "
            f"{type(optimizer).__name__}"
        )
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    base = type(optimizer)
    # The new class has the name and module of its base, under which Keras saves it. The reduction
    # is an attribute of the class, because Keras makes instances from their configuration alone.
    attributes = {
        "__module__": base.__module__,
        "_reduce_all": staticmethod(reduce),
        "_local": LocalVariables() if local is None else local,
    }
    kind: Any = type(base.__name__, (_ReducingScaled if scales else _Reducing, base), attributes)
    made = kind.from_config(optimizer.get_config())
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for mine, given in zip(made.variables, optimizer.variables, strict=True):
            mine.assign(given)
    return made


class BroadcastGlobalVariables(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keras callback that gives all ranks the root's weights and optimizer state before training.

    Every rank must have the callback at the same position in its list. The state of seed
    generators, for example of dropout layers, is not broadcast.

    Args:
        group: the group whose ranks train together.
        root: the rank whose values all ranks get.
    """

    def __init__(self, group: Group, root: int = 0) -> None:
        super().__init__()
        self.group = group
        self.root = root

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras before training.

        Raises RuntimeError if the model is not built, and a subclass of ReducerError if a broadcast
        failed.
        """
        broadcast_variables(trained_variables(self.model), self.group, self.root)


class MetricAverage(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keras callback that replaces the metrics of each epoch by their mean over all ranks.

    Put it before the callbacks that read the metrics (EarlyStopping, ReduceLROnPlateau,
    ModelCheckpoint), so that they decide the same on every rank. All ranks have equal weight,
    whatever their numbers of samples.

    Args:
        group: the group whose ranks train together.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def _mean(self, values: Array) -> Array:
        return wait_or_end(self.group, lambda: self.group.all_reduce(values, "mean"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras. Raises a subclass of ReducerError if the reduction failed."""
        average_logs(logs, self._mean)


def broadcast_variables(variables: Sequence[Any], group: Group, root: int = 0) -> None:
    """Give all ranks the root's values of Keras variables, byte for byte.

    Raises:
        ValueError: ``root`` is not a rank.
        ReducerError: a subclass, if a round or the group failed.
    """
    arrays = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    received = wait_all_or_end(group, lambda: [group.broadcast(array, root) for array in arrays])
    for variable, array in zip(variables, received, strict=True):
        variable.assign(array)


def trained_variables(model: Any) -> list[Any]:
    """The weights of a model and the state of its optimizer, which this builds if necessary.

    Raises RuntimeError if the model is not built.
    """
    if not model.built:
        raise RuntimeError(
            f"the model {model.name!r} is not built when training begins; build it first "
            "(model.build(input_shape), or call it on a batch)"
        )
    optimizer = model.optimizer
    if not optimizer.built:  # on the root a checkpoint may have built it; all ranks need it
        optimizer.build(model.trainable_variables)
    return [*model.weights, *optimizer.variables]


def is_wrapping(optimizer: Any, attribute: str, value: Any) -> bool:
    """Whether this assignment to an optimizer's attribute is a LossScaleOptimizer's.

    It sets the loss scale of its inner optimizer to None. The inner optimizer has no other sign
    that it was wrapped.
    """
    return attribute == "loss_scale_factor" and value is None and attribute in optimizer.__dict__


def average_logs(logs: dict[str, Any] | None, mean: Callable[[Array], Array]) -> None:
    """Replace the values in a callback's ``logs`` by their mean over all ranks."""
    if logs:
        names = sorted(logs)
        means = mean(np.array([float(logs[name]) for name in names]))
        logs.update(zip(names, means.tolist(), strict=True))


class _Reducing:
    """Mixin for optimizer classes that reduces the gradients before they are applied."""

    _reduce_all: Reduce
    _local: LocalVariables
    _trainable_variables: list[Any]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        given = trainable_variables
        variables = self._trainable_variables if given is None else list(given)
        base: Any = super()
        return base.apply(self._reduced(grads, variables), given)

    def _reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The reduced gradients. None stays None, and must be None on all ranks."""
        return self._local.reduce_others(grads, variables, self._reduce_all)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_wrapping(self, name, value):
            raise ValueError(
                "LossScaleOptimizer around a DistributedOptimizer: a rank whose gradients overflow "
                "would skip a step in which the other ranks wait for it. Use DistributedOptimizer("
                "LossScaleOptimizer(optimizer), group), also with the policy mixed_float16"
            )
        super().__setattr__(name, value)


class _ReducingScaled(_Reducing):
    """`_Reducing` for LossScaleOptimizer: reduces before the check for finite gradients.

    So all ranks make the same decision about a step.
    """

    def stateless_apply(self, optimizer_variables: Any, grads: Any, variables: Any) -> Any:
        base: Any = super()
        reduced = self._reduced(grads, variables)
        return base.stateless_apply(optimizer_variables, reduced, variables)


def _find_reduce(group: Group, op: Op, options: dict[str, Any]) -> Reduce:
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from reducer_client import tensorflow

        return lambda grads: tensorflow.all_reduce_many(grads, group, op, **options)
    if backend == "jax":
        from reducer_client import jax

        return lambda grads: jax.all_reduce_tree(grads, group, op, **options)
    if backend == "torch":
        return lambda grads: _reduce_on_host(grads, group, op, options)
    raise ValueError(
        f"the backend of Keras is {backend!r}: expected tensorflow, jax or torch; set KERAS_BACKEND"
    )


def _reduce_on_host(
    grads: Sequence[Any], group: Group, op: Op, options: dict[str, Any]
) -> list[Any]:
    arrays = [keras.ops.convert_to_numpy(gradient) for gradient in grads]
    reduced = wait_or_end(group, lambda: group.all_reduce_many(arrays, op, **options))
    return [
        keras.ops.convert_to_tensor(array, dtype=keras.backend.standardize_dtype(gradient.dtype))
        for array, gradient in zip(reduced, grads, strict=True)
    ]
