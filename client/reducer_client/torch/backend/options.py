"""The options of a process group that a program can set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reducer_client.config import JobSettings
from reducer_client.dtypes import WireDtype, check_wire_dtype

Hierarchy = Literal["auto"] | bool


@dataclass(frozen=True)
class Options(JobSettings):
    """``pg_options`` of ``init_process_group("reducer")`` and ``new_group``; equal on all ranks.

    Every setting of ``reducer_client.connect`` that torch does not know itself is a field:
    ``Options(on_nonfinite="error")``. A setting that is left out comes from its variable, as for
    ``connect``. A group made without options has the options of the default group. A further group
    on the same reducers has the default group's settings, except for the fields below.

    Args:
        wire_dtype: the dtype in which float32 is sent for sums and means of at least 1 MiB, as for
            ``Group.all_reduce``, such as ``"bfloat16"`` or ``"int8"``. Smaller calls, such as those
            for counts and losses, and all other operations send float32. With ``attach_fsdp`` all
            gradients are sent in this dtype.
        hierarchy: whether the ranks of a host first sum among themselves, each a part of the array,
            so that the host's NIC carries the array once. ``"auto"`` does so in the default group
            if the launcher's variables show several hosts with equal numbers of ranks. True raises
            ValueError if the hosts do not allow a hierarchy. A group other than the default one has
            a hierarchy only if its own ``new_group`` call gives True.
    """

    wire_dtype: WireDtype | None = None
    hierarchy: Hierarchy = "auto"

    def __post_init__(self) -> None:
        check_wire_dtype(self.wire_dtype)
        if self.hierarchy not in ("auto", True, False):
            raise ValueError(f'hierarchy={self.hierarchy!r}: expected "auto", True or False')
