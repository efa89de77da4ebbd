"""Options of a process group that a program sets; the environment sets the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reducer_client.dtypes import WireDtype

Hierarchy = Literal["auto"] | bool


@dataclass(frozen=True)
class Options:
    """``pg_options`` of ``init_process_group("reducer")`` and ``new_group``; equal on all ranks.

    Groups that are given none have those of the default group. What is not said here comes from
    the environment, as for ``reducer_client.connect``.

    Args:
        addresses: ``host:port`` of every reducer; by default ``REDUCER_ADDRS``.
        job: the name of the training run; by default ``REDUCER_JOB``, else what the launcher says,
            else one that rank 0 makes.
        wire_dtype: ``"bfloat16"`` or ``"float16"``: how sums and means of float32 travel, from
            1 MiB in a call. Smaller ones, as counts and losses are, and all other operations stay
            exact. For ``attach_fsdp`` it is every gradient.
        hierarchy: whether the ranks of a host sum among themselves first, each a part, so that the
            host's NIC carries it once. ``"auto"``: the default group, where the launcher says
            that there are several hosts with equally many ranks. True: ValueError where there are
            not; another group has a hierarchy only with this, given to ``new_group`` itself.
    """

    addresses: str | Sequence[str] | None = None
    job: str | None = None
    wire_dtype: WireDtype | None = None
    hierarchy: Hierarchy = "auto"

    def __post_init__(self) -> None:
        if self.wire_dtype not in (None, "float32", "float16", "bfloat16"):
            raise ValueError(f"wire_dtype={self.wire_dtype!r}: expected float16, bfloat16 or None")
        if self.hierarchy not in ("auto", True, False):
            raise ValueError(f'hierarchy={self.hierarchy!r}: expected "auto", True or False')
