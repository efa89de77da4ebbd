"""All of ``horovod.torch``; ``reducer_client.horovod`` is the same, and imports PyTorch late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reducer_client.horovod import *  # noqa: F403  # the names of its __all__

if not TYPE_CHECKING:  # mypy would take this list for an empty one
    from reducer_client.horovod import __all__ as __all__
