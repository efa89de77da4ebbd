"""The ways to send gradients that are compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.nn.parallel import DistributedDataParallel

from reducer_client import Group
from reducer_client.torch import attach, attach_topk

Attach = Callable[[DistributedDataParallel, Group], object]

# The one that the others are compared with.
WHOLE = "float32"
METHODS: dict[str, Attach] = {
    WHOLE: attach,
    "bfloat16": partial(attach, wire_dtype="bfloat16"),
    "float16": partial(attach, wire_dtype="float16"),
    "top 1 %": attach_topk,
    "top 1 %, bfloat16": partial(attach_topk, value_dtype="bfloat16"),
    "top 0.2 %, bfloat16": partial(attach_topk, ratio=0.002, value_dtype="bfloat16"),
}
