"""Keras 3: optimizers and callbacks for training over the reducers.

The backend of Keras may be TensorFlow, JAX or torch. Only JAX supports XLA (jit_compile) here.

With the mean gradient of all ranks:

model.compile(optimizer=DistributedOptimizer(keras.optimizers.Adam(), group), jit_compile=False)
model.fit(..., callbacks=[BroadcastGlobalVariables(group), MetricAverage(group)])

or, with parameters that the reducers keep and update:

model.compile(ServerOptimizer.create(model, ps, optimizer=Adam(...)), jit_compile=False)

or, over a slow link, with an exchange every 50 batches:

model.compile(keras.optimizers.Adam())
model.fit(..., callbacks=[DiLoCo(group, every=50)])
"""

from __future__ import annotations

from reducer_client.keras.all_reduce import (
    BroadcastGlobalVariables,
    DistributedOptimizer,
    MetricAverage,
)
from reducer_client.keras.diloco import DiLoCo
from reducer_client.keras.server_optimizer import ServerOptimizer
from reducer_client.outer.optimizer import OuterSGD

__all__ = [
    "BroadcastGlobalVariables",
    "DiLoCo",
    "DistributedOptimizer",
    "MetricAverage",
    "OuterSGD",
    "ServerOptimizer",
]
