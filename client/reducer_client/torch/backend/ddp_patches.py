"""Patches for DistributedDataParallel where its C++ code keeps only the C++ half of a work.

A work of this package is a Python object. Its C++ half alone is the bare base class, whose ``wait``
never returns. Torch keeps the Python half wherever C++ gets a work from a process group, and where
an operator registers one. The exception is ``DistributedDataParallel.join``: in each forward pass
the module gives a work to its C++ reducer, which waits for the work in the backward pass. The
program may make any number of calls in between.

In C++ the value of a future that Python completes is a Python object. DDP's C++ reducer unpacks the
object. Torch's built-in C++ hook FP16_COMPRESS does not, and fails with an internal assertion.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch._C import _distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from reducer_client.torch.backend.delegate import DelegatingGroup
from reducer_client.torch.calls.works import CallWork

_c10d: Any = _distributed_c10d  # torch's stub lacks most names


def hand_over_lasting_works() -> None:
    """Patch DDP's C++ reducer: it takes, instead of our work, a C++ work on the same future.

    The C++ work lives as long as the reducer holds it. Works of other backends are passed on
    unchanged. A second call changes nothing.
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
    """Patch DDP to use torch's Python fp16 hook instead of the built-in one on our groups.

    Groups of other backends keep the C++ hook. A second call changes nothing.
    """
    model: Any = DistributedDataParallel
    register = model._register_builtin_comm_hook
    if hasattr(register, "__wrapped__"):
        return

    @wraps(register)
    def register_python(self: Any, comm_hook_type: Any) -> None:
        compresses = comm_hook_type == _c10d.BuiltinCommHookType.FP16_COMPRESS
        if compresses and isinstance(self.process_group, DelegatingGroup):
            # Imports many modules that a program without hooks does not need.
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            register(self, comm_hook_type)

    model._register_builtin_comm_hook = register_python
