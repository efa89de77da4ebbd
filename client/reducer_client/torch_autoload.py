"""What every ``import torch`` on the machine runs: it makes the backend ``"reducer"`` known.

Light, and never raises (torch would not be importable any more): everything else is imported by the
first process group that is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NAME = "reducer"


def register() -> None:
    """Make ``init_process_group("reducer")`` work; twice is once. The entry point of torch."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(group: Any, options: Any) -> ProcessGroup:
    from reducer_client.torch.backend.process_group import create

    return create(group, options)
