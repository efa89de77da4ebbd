"""Keras 3: optimizers that apply the mean gradient of all ranks, and callbacks for training.

model.compile(optimizer=DistributedOptimizer(keras.optimizers.Adam(), group), jit_compile=False)
model.fit(..., callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)])

The backend of Keras may be TensorFlow, JAX or torch. Only JAX supports XLA (jit_compile) here.
"""

from __future__ import annotations

from reducer_client.keras.all_reduce import (
    BroadcastGlobalVariables,
    DistributedOptimizer,
    MetricAverage,
)

__all__ = ["BroadcastGlobalVariables", "DistributedOptimizer", "MetricAverage"]
