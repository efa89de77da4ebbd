"""Calls that torch.compile leaves as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch._compile import _disable_dynamo


def untraced(call: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which dynamo does not look into: to it a process group has no attributes.

    Dynamo, which takes seconds to import, is not imported by a program that does not use it.
    """
    disabled = _disable_dynamo(call)

    @wraps(call)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else call)(*args, **kwargs)

    return choose
