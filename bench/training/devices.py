"""The device that a worker computes on: its environment, its checks and its facts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from bench.training.case import NCCL, parse_contender


def enter(device: str, rank: int, interface: str) -> None:
    """Prepare this worker's process. Must run before the first CUDA call.

    All contenders that sum alike must end with the same bits, so kernels are deterministic.
    """
    if device != "cuda":
        return
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # Each worker is a host of its own: NCCL then uses TCP, and lets workers share a GPU.
    os.environ |= {"NCCL_HOSTID": f"w{rank}", "NCCL_SOCKET_IFNAME": interface}
    torch.use_deterministic_algorithms(True)
    # Else each `torch.empty` would also fill its memory with NaN.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.cuda.set_device(rank % torch.cuda.device_count())


def check(device: str, contenders: Sequence[str], device_ms: float) -> None:
    """Raises ValueError for a case that this machine or the options do not allow."""
    if device == "cuda" and device_ms:
        raise ValueError("--device-ms stands for an accelerator: leave it out with --device cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device; try --device cpu"
        )
    if device != "cuda" and NCCL in {parse_contender(name).kind for name in contenders}:
        raise ValueError("contender nccl: expected --device cuda; NCCL sums tensors of GPUs alone")


def facts(device: str) -> dict[str, Any]:
    """What the context line of a run says of the device; nothing for a CPU."""
    if device != "cuda":
        return {}
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version()))
    return {"gpus": names, "cuda": torch.version.cuda, "nccl": version}
