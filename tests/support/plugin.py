"""The path to which `make nccl-plugin` writes the plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NCCL_PLUGIN: Final = (
    Path(__file__).resolve().parents[2]
    / "build" / "native" / "nccl_plugin" / "libnccl-net-reducer.so"
)  # fmt: skip
