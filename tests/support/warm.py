"""Imports for the server from which ranks are forked, so that a rank need not repeat them.

The server must have one thread when it forks, so nothing here may start another.
"""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import suppress
from importlib import import_module

MODULES = (
    "numpy",
    "pytest",
    "reducer_client.torch",
    "reducer_client.horovod.torch",
    "torch._dynamo",  # imported by every optimizer
)

gc.disable()  # collections would take a quarter of the time of the imports
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # OpenBLAS starts its threads when NumPy is imported
for name in MODULES:
    with suppress(ImportError):
        import_module(name)
# torch undoes its registrations of operators at exit: 60 CPU milliseconds in each rank.
for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    finalizer.atexit = False
gc.freeze()  # a collection in a rank would copy the pages of all these objects
gc.enable()
THREADS = len(os.listdir("/proc/self/task"))
assert THREADS == 1, f"{THREADS} threads: a forked rank would inherit their locks, not them"
