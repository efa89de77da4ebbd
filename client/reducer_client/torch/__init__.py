"""PyTorch: gradients of DistributedDataParallel through the reducers.

model = DistributedDataParallel(net, **reducer_client.torch.ddp_options())
reducer_client.torch.attach(model, group)
"""

from __future__ import annotations

from reducer_client.torch.hook import ReductionState, all_reduce_hook, attach, ddp_options

__all__ = ["ReductionState", "all_reduce_hook", "attach", "ddp_options"]
