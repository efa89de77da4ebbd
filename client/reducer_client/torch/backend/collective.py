"""The parts of a collective that torch's compiler and profiler need.

torch.compile leaves the calls as they are, torch.profiler shows them as ``reducer:all_reduce`` and
so on, from the call until the result is there, and ``_coalescing_manager`` gathers their works.
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
    """Decorates a method that starts a collective and returns its work."""

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
    """The method, which dynamo does not look into: to it a process group has no attributes.

    Dynamo, which takes seconds to import, is not imported by a program that does not use it.
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
    record.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def end() -> None:
        record.__exit__(None, None, None)

    try:
        work = method(*args, **kwargs)
    except BaseException:
        end()
        raise
    if isinstance(work, CallWork):
        work.when_settled(end)
    else:  # a call of an inner group, which gloo and nccl show themselves
        end()
    return work
