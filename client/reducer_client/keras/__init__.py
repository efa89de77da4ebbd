"""Keras 3: optimizers and callbacks for training over the reducers.

The backend of Keras may be TensorFlow, JAX or torch. Only JAX supports XLA (jit_compile) here.

With the mean gradient of all ranks:

model.compile(optimizer=DistributedOptimizer(keras.optimizers.Adam(), group), jit_compile=False)
model.fit(..., callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)])

or, with parameters that the reducers keep and update:

model.compile(ServerOptimizer.create(model, ps, optimizer=Adam(...)), jit_compile=False)
"""

from __future__ import annotations

from reducer_client.keras.all_reduce import (
    BroadcastGlobalVariables,
    DistributedOptimizer,
    MetricAverage,
)
from reducer_client.keras.server_optimizer import ServerOptimizer

__all__ = ["BroadcastGlobalVariables", "DistributedOptimizer", "MetricAverage", "ServerOptimizer"]
