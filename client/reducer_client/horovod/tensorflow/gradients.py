"""Gradients of all ranks: the tape, and the reduction that Keras' optimizers use as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from reducer_client.horovod.process_sets import ProcessSet, global_process_set
from reducer_client.horovod.requests import Average, ReduceOp
from reducer_client.horovod.tensorflow.compression import Compression
from reducer_client.horovod.tensorflow.reductions import Reduction, reduce_all
from reducer_client.local_variables import LocalVariables
from reducer_client.tensorflow import ReducedTape

Pairs = list[tuple[Any, Any]]


class DistributedTape(ReducedTape):
    """A tf.GradientTape whose `gradient` is reduced; all else is the tape's own."""

    def register_local_source(self, source: Any) -> None:
        """Do not reduce the gradient of this source. Pass the same object to `gradient`."""
        self._local.add(source)

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], *args: Any, **kwargs: Any
    ) -> tuple[Pairs, Pairs]:
        """Two lists of (source, gradient): the local sources, and all others.

        The gradients of local sources are not reduced.
        """
        gradients = self.gradient(target, sources, *args, **kwargs)
        pairs = list(zip(sources, gradients, strict=True))
        local = [pair for pair in pairs if pair[0] in self._local]
        return local, [pair for pair in pairs if pair[0] not in self._local]


def DistributedGradientTape(  # noqa: N802 - makes a tape, and programs know it by this name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """The tape with a ``gradient`` that is reduced over the ranks of the set.

    All gradients are announced together, so ``num_groups`` and ``groups`` are not needed. A rank
    that is not in the set keeps its own gradients.

    Args:
        gradtape: the ``tf.GradientTape`` of the program.
        device_dense, device_sparse: not used; accepted for programs written for Horovod.
        compression: the compressor for the data that is sent.
        sparse_as_dense: sum IndexedSlices as dense tensors, instead of gathering the slices.
        op: Average, Sum or another reduction of floats.
        gradient_predivide_factor: with Average, divide by this factor before the sum and multiply
            by it after the sum, so that the sum of large gradients does not overflow.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.

    Raises:
        ValueError: ``gradient_predivide_factor`` is not 1 and ``op`` is not Average.
    """
    reduce = reduction_of_gradients(
        compression, op, gradient_predivide_factor, process_set, sparse_as_dense
    )
    return DistributedTape(
        gradtape, reduce, local_variables([], process_set, scale_local_gradients)
    )


def PartialDistributedGradientTape(  # noqa: N802 - makes a tape, and programs know it by this name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """`DistributedGradientTape` that leaves the gradients of some layers to each rank.

    Args:
        local_layers: a Keras layer or several; each must be built.
    """
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for weight in weights_of(local_layers):
        tape.register_local_source(weight)
    return tape


def reduction_of_gradients(
    compression: Any,
    op: ReduceOp,
    gradient_predivide_factor: float,
    process_set: ProcessSet,
    sparse_as_dense: bool,
) -> Callable[[list[Any]], list[Any]]:
    """A function from a list of gradients to their reductions.

    Raises ValueError for a factor other than 1 if ``op`` is not Average.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor={gradient_predivide_factor}, op={op!r}: expected Average"
        )
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    how = Reduction(op, scales, compression, None, process_set)

    def reduce(gradients: list[Any]) -> list[Any]:
        if not process_set.included():
            return gradients
        if sparse_as_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return reduce_all(gradients, how)

    return reduce


def local_variables(
    variables: Iterable[Any], process_set: ProcessSet, scale: bool
) -> LocalVariables:
    """Variables whose gradients are not reduced, but divided by the number of ranks if ``scale``.

    Average divides the reduced gradients by the number of ranks. If the local gradients are divided
    as well, they keep their proportion to the reduced ones.
    """

    def divided(gradient: Any) -> Any:
        size = float(len(process_set.ranks))
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

    return LocalVariables(variables, divided) if scale else LocalVariables(variables)


def weights_of(layers: Any) -> list[Any]:
    """The trainable weights of a Keras layer or of several; ValueError for anything else."""
    listed = [layers] if hasattr(layers, "trainable_weights") else list(layers or ())
    for layer in listed:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers: expected Keras layers, got {type(layer).__name__}")
        if not layer.built:
            raise ValueError(f"local_layers: {layer.name!r} is not built; build the model first")
    return [weight for layer in listed for weight in layer.trainable_weights]
