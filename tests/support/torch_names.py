"""Collectives of torch that were renamed in 2.13, for both versions."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional


def _find(module: Any, name: str, earlier: str) -> Any:
    return getattr(module, name, None) or getattr(module, earlier)


all_gather_single = _find(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = _find(dist, "reduce_scatter_single", "reduce_scatter_tensor")
functional_all_gather = _find(functional, "all_gather_single", "all_gather_tensor")
functional_reduce_scatter = _find(functional, "reduce_scatter_single", "reduce_scatter_tensor")
