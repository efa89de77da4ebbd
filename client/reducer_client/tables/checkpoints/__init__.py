"""Checkpoints of tables: files that any number of reducers, and any reader of safetensors, can use.

A checkpoint is a folder ``step-N`` with ``manifest.json`` and ``shards-I.safetensors``. This room
knows neither sockets nor reducers. It writes the images of tables that it is given, and reads them
back bit for bit.
"""

from __future__ import annotations

from reducer_client.tables.checkpoints.errors import CheckpointError
from reducer_client.tables.checkpoints.image import TableImage
from reducer_client.tables.checkpoints.inspection import CheckpointRow, inspect
from reducer_client.tables.checkpoints.loading import load
from reducer_client.tables.checkpoints.policy import SavePolicy
from reducer_client.tables.checkpoints.saving import save

__all__ = [
    "CheckpointError",
    "CheckpointRow",
    "SavePolicy",
    "TableImage",
    "inspect",
    "load",
    "save",
]
