"""Client of the open Reduction Server, whose reducers sum the arrays of a job's workers.

    with reducer_client.connect(["host:2222"], job="name", rank=r, world_size=n) as group:
        result = group.all_reduce(array, op="mean").wait()

PyTorch: ``reducer_client.torch``; Keras 3, TensorFlow, JAX: ``.keras``, ``.tensorflow``, ``.jax``.
"""

# This file imports no other module of ours until a name is used, because every program that imports
# torch imports this package (see ``torch_autoload``).

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reducer import __version__
    from reducer.version import PROTOCOL_VERSION
    from reducer_client.embedded import local_reducers
    from reducer_client.errors import (
        AuthenticationError,
        ClosedError,
        EvictedError,
        IntegrityError,
        JoinError,
        MismatchError,
        NumericError,
        PeerLostError,
        ProtocolError,
        ProtocolVersionError,
        QuotaExceededError,
        ReducerError,
        ReducerUnavailableError,
        RoundTimeoutError,
        StaleBaseError,
        StateLostError,
    )
    from reducer_client.group import Group
    from reducer_client.joining import connect
    from reducer_client.quantized import Quantized
    from reducer_client.tables import parameter_server
    from reducer_client.work import Work

__all__ = [
    "PROTOCOL_VERSION",
    "AuthenticationError",
    "ClosedError",
    "EvictedError",
    "Group",
    "IntegrityError",
    "JoinError",
    "MismatchError",
    "NumericError",
    "PeerLostError",
    "ProtocolError",
    "ProtocolVersionError",
    "Quantized",
    "QuotaExceededError",
    "ReducerError",
    "ReducerUnavailableError",
    "RoundTimeoutError",
    "StaleBaseError",
    "StateLostError",
    "Work",
    "__version__",
    "connect",
    "local_reducers",
    "parameter_server",
]

_MODULES = {
    "PROTOCOL_VERSION": "reducer.version",
    "__version__": "reducer",
    "Group": "reducer_client.group",
    "Quantized": "reducer_client.quantized",
    "Work": "reducer_client.work",
    "connect": "reducer_client.joining",
    "local_reducers": "reducer_client.embedded",
    "parameter_server": "reducer_client.tables",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES.get(name, "reducer_client.errors"))
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
