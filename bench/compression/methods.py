"""The compared methods to send gradients, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reducer_client import Group, Quantized
from reducer_client.torch import attach, attach_topk

Attach = Callable[[DistributedDataParallel, Group], object]


def _power_sgd(model: DistributedDataParallel, group: Group) -> None:
    """torch's PowerSGD, over the module's process group; it requires uncompressed first steps."""
    state = PowerSGDState(dist.group.WORLD, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)


def _torchs_float16(model: DistributedDataParallel, group: Group) -> None:
    """torch's hook, which divides by the number of ranks and then sums in float16."""
    model.register_comm_hook(None, fp16_compress_hook)


# The method with which the others are compared.
WHOLE = "float32"
METHODS: dict[str, Attach] = {
    WHOLE: attach,
    "bfloat16": partial(attach, wire_dtype="bfloat16"),
    "float16": partial(attach, wire_dtype="float16"),
    "int8": partial(attach, wire_dtype="int8", error_feedback=True),
    "int8 both ways": partial(
        attach, wire_dtype=Quantized("int8", down="same"), error_feedback=True
    ),
    "float8 both ways": partial(
        attach, wire_dtype=Quantized("float8_e4m3fn", down="same"), error_feedback=True
    ),
    "e3m0": partial(attach, wire_dtype="e3m0", error_feedback=True),
    "e3m0 both ways": partial(
        attach, wire_dtype=Quantized("e3m0", down="same"), error_feedback=True
    ),
    "int8 both ways stochastic": partial(
        attach, wire_dtype=Quantized("int8", down="same", rounding="stochastic")
    ),
    "e3m0 both ways stochastic": partial(
        attach, wire_dtype=Quantized("e3m0", down="same", rounding="stochastic")
    ),
    "e3m0 both ways without feedback": partial(attach, wire_dtype=Quantized("e3m0", down="same")),
    "top 1%": attach_topk,
    "top 1% bfloat16": partial(attach_topk, value_dtype="bfloat16"),
    "top 0.2% bfloat16": partial(attach_topk, ratio=0.002, value_dtype="bfloat16"),
    "PowerSGD rank 2": _power_sgd,
    "fp16_compress_hook": _torchs_float16,
}
