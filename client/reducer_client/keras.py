"""Keras 3: optimizers that apply the mean gradient of all ranks, and the callbacks beside them.

model.compile(optimizer=DistributedOptimizer(keras.optimizers.Adam(), group), jit_compile=False)
model.fit(..., callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)])

The backends of Keras may be TensorFlow, JAX or torch; XLA (jit_compile) is for JAX alone.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from reducer_client.arrays import Array
from reducer_client.dtypes import Op, WireDtype
from reducer_client.fusion import DEFAULT_FUSION_THRESHOLD
from reducer_client.group import Group, wait_or_end
from reducer_client.local_gradients import LocalVariables

__all__ = ["BroadcastGlobalVariables", "DistributedOptimizer", "MetricAverage"]

Reduce = Callable[[list[Any]], Sequence[Any]]

_names: weakref.WeakKeyDictionary[Group, itertools.count[int]] = weakref.WeakKeyDictionary()


def DistributedOptimizer(  # noqa: N802 - makes an optimizer, and users know it by this name
    optimizer: Any,
    group: Group,
    op: Op = "mean",
    *,
    fusion_threshold: int = DEFAULT_FUSION_THRESHOLD,
    wire_dtype: WireDtype | None = None,
    key: str | None = None,
) -> Any:
    """An optimizer of the same class and settings that first reduces its gradients over all ranks.

    ``apply`` hands all gradients in at once; clipping, weight decay and the update see the reduced
    ones. A built optimizer's state is taken over. It is saved as the class it was made from: wrap
    the loaded one again. A LossScaleOptimizer is given here, not put around the result.

    Args:
        optimizer: a Keras 3 optimizer; it is not changed, and no longer needed.
        fusion_threshold: bytes; the gradients of a dtype travel together up to there.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: how float32 gradients travel.
        key: begins the keys of the rounds. By default it tells by the order of creation which
            optimizer of the group it is, so all ranks must make theirs in the same order.

    Raises:
        TypeError: no Keras 3 optimizer, or one that is distributed already.
        ValueError: Keras runs on another backend than tensorflow, jax and torch.
    """
    if key is None:
        key = f"keras{next(_names.setdefault(group, itertools.count()))}"
    options = {"fusion_threshold": fusion_threshold, "wire_dtype": wire_dtype, "key": key}
    return with_reduction(optimizer, _find_reduce(group, op, options))


def with_reduction(optimizer: Any, reduce: Reduce, local: LocalVariables | None = None) -> Any:
    """An optimizer of the same class, settings and state that applies what ``reduce`` returns.

    Args:
        local: variables whose gradients are not reduced.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, _Reducing):
        raise TypeError(
            "expected an optimizer of Keras 3 that is not distributed yet, got "
            f"{type(optimizer).__name__}"
        )
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    base = type(optimizer)
    # Named as its base, and so it is saved. The reduction belongs to the class, for Keras makes
    # instances from their configuration alone.
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


class BroadcastGlobalVariables(keras.callbacks.Callback):  # type: ignore[misc]  # no types there
    """Before training, give all ranks the root's weights and optimizer state.

    The seeds of random layers stay each rank's own. On every rank, in the same place of the list.
    """

    def __init__(self, group: Group, root: int = 0) -> None:
        super().__init__()
        self.group = group
        self.root = root

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras, after it has built the model."""
        broadcast_variables(trained_variables(self.model), self.group, self.root)


class MetricAverage(keras.callbacks.Callback):  # type: ignore[misc]  # no types there
    """At the end of each epoch, replace the metrics by their mean over all ranks.

    Put it before the callbacks that read them (EarlyStopping, ReduceLROnPlateau, ModelCheckpoint):
    these then decide alike on every rank. Each rank counts the same, whatever its share of samples.
    """

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def _mean(self, values: Array) -> Array:
        return wait_or_end(self.group, self.group.all_reduce(values, "mean"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        average_logs(logs, self._mean)


def broadcast_variables(variables: Sequence[Any], group: Group, root: int = 0) -> None:
    """Give all ranks the root's values of Keras variables, byte for byte.

    Raises:
        ReducerError: one of its children.
    """
    arrays = [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
    works = [group.broadcast(array, root) for array in arrays]
    for variable, work in zip(variables, works, strict=True):
        variable.assign(wait_or_end(group, work))


def trained_variables(model: Any) -> list[Any]:
    """Weights and optimizer state of a model; RuntimeError where it is not built."""
    if not model.built:
        raise RuntimeError(
            f"the model {model.name!r} is not built when training begins; build it first "
            "(model.build(input_shape), or call it on a batch)"
        )
    optimizer = model.optimizer
    if not optimizer.built:  # on the root it may be, from a checkpoint
        optimizer.build(model.trainable_variables)
    return [*model.weights, *optimizer.variables]


def average_logs(logs: dict[str, Any] | None, mean: Callable[[Array], Array]) -> None:
    """Replace the numbers in what Keras gives to a callback by their mean."""
    if logs:
        names = sorted(logs)
        means = mean(np.array([float(logs[name]) for name in names]))
        logs.update(zip(names, means.tolist(), strict=True))


class _Reducing:
    """In front of an optimizer's class: reduces before it applies."""

    _reduce_all: Reduce
    _local: LocalVariables
    _trainable_variables: list[Any]

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        given = trainable_variables
        variables = self._trainable_variables if given is None else list(given)
        return super().apply(self._reduced(grads, variables), given)  # type: ignore[misc]

    def _reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Those that are None (a variable without a gradient) stay so, on all ranks alike."""
        return self._local.reduce_others(grads, variables, self._reduce_all)

    def __setattr__(self, name: str, value: Any) -> None:
        # LossScaleOptimizer takes the factor from what it is put around, and says no more to it.
        if name == "loss_scale_factor" and value is None and name in self.__dict__:
            raise ValueError(
                "LossScaleOptimizer around a DistributedOptimizer: a rank whose gradients overflow "
                "would leave out the step that the others wait for. Use DistributedOptimizer("
                "LossScaleOptimizer(optimizer), group), also with the policy mixed_float16"
            )
        super().__setattr__(name, value)


class _ReducingScaled(_Reducing):
    """The same for LossScaleOptimizer: all ranks then find the same gradients finite, or not."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, variables: Any) -> Any:
        applied: Any = super().stateless_apply  # type: ignore[misc]  # of the class behind
        return applied(optimizer_variables, self._reduced(grads, variables), variables)


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
    raise ValueError(f"Keras runs on {backend}; expected tensorflow, jax or torch (KERAS_BACKEND)")


def _reduce_on_host(
    grads: Sequence[Any], group: Group, op: Op, options: dict[str, Any]
) -> list[Any]:
    arrays = [keras.ops.convert_to_numpy(gradient) for gradient in grads]
    reduced = wait_or_end(group, group.all_reduce_many(arrays, op, **options))
    return [
        keras.ops.convert_to_tensor(array, dtype=keras.backend.standardize_dtype(gradient.dtype))
        for array, gradient in zip(reduced, grads, strict=True)
    ]
