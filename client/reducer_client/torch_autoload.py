"""The entry point that every ``import torch`` runs: registers the backend ``"reducer"``.

An error here would make torch unimportable, so ``register`` does little and imports no other module
of the package. The first process group imports the backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NAME = "reducer"


def register() -> None:
    """Make ``init_process_group("reducer")`` work. A second call changes nothing."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(group: Any, options: Any) -> ProcessGroup:
    from reducer_client.torch.backend.process_group import create

    return create(group, options)
