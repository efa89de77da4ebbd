"""Tables: parameters that the workers of a job share, and that the reducers update.

    with reducer_client.parameter_server(["host:2222"], job="name", worker=0) as ps:
        table = ps.table("net", {"w": w, "b": b}, optimizer=Adam(1e-3, convention="torch"))
        table.push({"w": dw, "b": db})
        table.pull(out={"w": w, "b": b})

The optimizers are in `reducer.optimizers`.
"""

from __future__ import annotations

from reducer_client.tables.connecting import parameter_server
from reducer_client.tables.description import TableInfo
from reducer_client.tables.modes import SSP, Async, KOfN, Sync
from reducer_client.tables.receipts import Push, Receipt
from reducer_client.tables.server import ParameterServer
from reducer_client.tables.table import Table
from reducer_client.tables.tally import Counts, Staleness

__all__ = [
    "SSP",
    "Async",
    "Counts",
    "KOfN",
    "ParameterServer",
    "Push",
    "Receipt",
    "Staleness",
    "Sync",
    "Table",
    "TableInfo",
    "parameter_server",
]
