"""The native engine. The import fails with the reason if it was not built."""

from __future__ import annotations

try:
    from reducer_client._engine import Engine, EngineError, Operation
except ImportError as missing:
    raise ImportError(
        "reducer_client has no engine for this Python: it was installed with REDUCER_NO_NATIVE=1, "
        "or its native part was not built. Install the wheel for this Python, or install from a "
        "checkout without that variable (this needs a C++17 compiler)",
        name=__name__,
    ) from missing

__all__ = ["Engine", "EngineError", "Operation"]
