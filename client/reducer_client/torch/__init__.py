"""PyTorch: the reducers as backend of torch.distributed, or for one DistributedDataParallel module.

    torch.distributed.init_process_group("reducer")

or, over another backend:

    model = DistributedDataParallel(net)
    reducer_client.torch.attach(model, group)

or, with a forward pass that begins before all gradients of the last step have arrived:

    with reducer_client.torch.Overlap(model, optimizer, group): ...

or, with workers that come and go:

    with reducer_client.torch.Elastic(model, optimizer, workers=4) as elastic: ...

or, with parameters that the reducers keep and update:

    optimizer = reducer_client.torch.ServerOptimizer.create(model, ps, optimizer=Adam(...))

or, with an optimizer of torch that applies the mean of the first k workers:

    optimizer = reducer_client.torch.QuorumOptimizer(AdamW(...), model, ps, k=3)

or, over a slow link, with an exchange every 50 steps:

    optimizer = reducer_client.torch.DiLoCo(model, AdamW(...), group, every=50)
"""

from __future__ import annotations

from reducer_client import torch_autoload
from reducer_client.framework_errors import raising
from reducer_client.outer.optimizer import OuterSGD
from reducer_client.torch.backend.options import Options
from reducer_client.torch.elastic.training import Elastic
from reducer_client.torch.hook.ddp import ReductionState, all_reduce_hook, attach
from reducer_client.torch.hook.topk import TopKState, attach_topk, topk_hook
from reducer_client.torch.local.diloco import DiLoCo
from reducer_client.torch.local.local_sgd import LocalSGD
from reducer_client.torch.overlap.training import Overlap
from reducer_client.torch.server.optimizer import ServerOptimizer
from reducer_client.torch.server.quorum import QuorumOptimizer

__all__ = [
    "DiLoCo",
    "Elastic",
    "LocalSGD",
    "Options",
    "OuterSGD",
    "Overlap",
    "QuorumOptimizer",
    "ReductionState",
    "ServerOptimizer",
    "TopKState",
    "all_reduce_hook",
    "attach",
    "attach_topk",
    "raising",
    "topk_hook",
]

torch_autoload.register()
