"""Ray: reducers as actors of a Ray cluster, and the workers of Ray Train on these reducers.

    with reducer_client.ray.reducers(4, cpus=2, memory="4GiB") as pool:
        config = reducer_client.ray.ReducerConfig(pool)
        TorchTrainer(train, torch_config=config, scaling_config=ScalingConfig(8)).fit()

`ReducerConfig` needs PyTorch; `reducers` does not.
"""

# ReducerConfig is imported when it is used, because Ray Train and PyTorch take seconds to import.

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if find_spec("ray") is None:
    raise ImportError(
        "reducer_client.ray needs Ray, which is not installed: pip install 'ray[train]'"
    )

from reducer_client.ray.pool import Pool, reducers

if TYPE_CHECKING:
    from reducer_client.ray.training import ReducerConfig

__all__ = ["Pool", "ReducerConfig", "reducers"]


def __getattr__(name: str) -> object:
    if name != "ReducerConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reducer_client.ray.training import ReducerConfig

    return ReducerConfig
