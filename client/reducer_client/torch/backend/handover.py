"""Calls in which torch's C++ takes a work from Python and keeps only its C++ half.

A work of ours is a Python object: without that its C++ half is the bare base class, whose ``wait``
never returns. Torch keeps the Python half wherever C++ gets a work from a process group, and where
an operator registers one. The one place where torch does not is ``DistributedDataParallel.join``:
the module gives the work of each forward pass to its reducer, which waits for that work in the
backward pass, and the program may make any number of calls between the two.

To C++ the value of a future that Python completes is a Python object. DDP's reducer unpacks it.
Torch's built-in hook FP16_COMPRESS, in C++, does not: it fails with an internal assertion.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch._C import _distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from reducer_client.torch.backend.delegate import DelegatingGroup
from reducer_client.torch.calls.works import CallWork

_c10d: Any = _distributed_c10d  # torch's stub has little of it


def hand_over_lasting_works() -> None:
    """Have every reducer of DDP given, for a work of ours, torch's own over the future of the call.

    That lives as long as the reducer has it, and no longer. Twice is once; works of other backends
    are handed over as they are.
    """
    take = _c10d.Reducer._set_forward_pass_work_handle
    if hasattr(take, "__wrapped__"):
        return

    @wraps(take)
    def take_lasting(reducer: Any, work: Any, use_static_world_size: bool) -> None:
        if isinstance(work, CallWork):
            work = _c10d._create_work_from_future(work.get_future())
        take(reducer, work, use_static_world_size)

    _c10d.Reducer._set_forward_pass_work_handle = take_lasting


def take_python_hooks() -> None:
    """Have DDP take torch's fp16 hook in Python for the built-in one, on a group of ours.

    Twice is once; groups of other backends get the hook in C++.
    """
    model: Any = DistributedDataParallel
    register = model._register_builtin_comm_hook
    if hasattr(register, "__wrapped__"):
        return

    @wraps(register)
    def register_python(self: Any, comm_hook_type: Any) -> None:
        compresses = comm_hook_type == _c10d.BuiltinCommHookType.FP16_COMPRESS
        if compresses and isinstance(self.process_group, DelegatingGroup):
            # Imports much that a program without hooks does not need.
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            register(self, comm_hook_type)

    model._register_builtin_comm_hook = register_python
