"""Wraps the collectives of a process group for torch's compiler, profiler and coalescing manager.

torch.compile does not trace into the calls. torch.profiler shows each call as
``reducer:all_reduce`` and so on, from its start until the result has arrived. Inside torch's
``_coalescing_manager`` the works are collected.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch._compile import _disable_dynamo
from torch.autograd.profiler import record_function

from reducer_client.torch.calls.works import CallWork

Method = Callable[..., Any]


def collective(title: str) -> Callable[[Method], Method]:
    """Decorator for a method that starts a collective and returns its work."""

    def decorate(method: Method) -> Method:
        def start(self: Any, *args: Any, **kwargs: Any) -> Any:
            call = _profiled if _profiler_enabled() else _plain
            work = call(f"reducer:{title}", method, self, *args, **kwargs)
            if self.coalescing is not None:
                self.coalescing.append(work)
            return work

        return untraced(wraps(method)(start))

    return decorate


def untraced(method: Method) -> Method:
    """Wrap a method so that dynamo does not trace into it.

    Dynamo's model of a process group has no attributes, so tracing would fail. The wrapper does not
    import dynamo, which takes seconds, unless the program has imported it.
    """
    disabled = _disable_dynamo(method)

    @wraps(method)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else method)(*args, **kwargs)

    return choose


def _plain(title: str, method: Method, *args: Any, **kwargs: Any) -> Any:
    return method(*args, **kwargs)


def _profiled(title: str, method: Method, *args: Any, **kwargs: Any) -> Any:
    record = record_function(title)
    record.__enter__()  # type: ignore[no-untyped-call]  # not annotated in torch

    def end() -> None:
        record.__exit__(None, None, None)

    try:
        work = method(*args, **kwargs)
    except BaseException:
        end()
        raise
    if isinstance(work, CallWork):
        work.when_settled(end)
    else:  # a call of an inner group: gloo and nccl record it themselves
        end()
    return work
