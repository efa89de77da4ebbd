"""PyTorch: the reducers as backend of torch.distributed, or for one DistributedDataParallel module.

torch.distributed.init_process_group("reducer")

or, over another backend:

model = DistributedDataParallel(net)
reducer_client.torch.attach(model, group)
"""

from __future__ import annotations

from reducer_client import torch_autoload
from reducer_client.torch.backend.options import Options
from reducer_client.torch.hook.ddp import ReductionState, all_reduce_hook, attach
from reducer_client.torch.hook.topk import TopKState, attach_topk, topk_hook

__all__ = [
    "Options",
    "ReductionState",
    "TopKState",
    "all_reduce_hook",
    "attach",
    "attach_topk",
    "topk_hook",
]

torch_autoload.register()
