"""Settings of a worker: arguments, then variables, then launchers and clusters, then defaults.

`given` is the table of all settings, and `settings` resolves them. In the client only this room,
elastic/config.py and horovod/config.py read the environment. The window of a worker is an option of
the reducers: ``--credit`` (`reducer.server.serve_options`).
"""

from reducer_client.config.chunks import CHUNK_ALIGNMENT, check_weights, default_chunk_table
from reducer_client.config.cluster import (
    find_cluster,
    find_dedicated,
    find_job,
    find_local_ranks,
    find_worker,
    find_world_size,
    gloo_interfaces,
    keep_gloo_on,
    keep_gloo_on_loopback,
    publish_job,
    require_addresses,
    require_job,
    resolve_registry,
    resolve_run,
    resolve_run_id,
)
from reducer_client.config.given import (
    CudaWait,
    Given,
    JobSettings,
    OnNonfinite,
    OnOverflow,
    Transport,
    find_value,
)
from reducer_client.config.logs import resolve_debug
from reducer_client.config.secrets import resolve_key, resolve_tls
from reducer_client.config.settings import DEFAULT_STEP_TIMEOUT, Settings, resolve

__all__ = [
    "CHUNK_ALIGNMENT",
    "DEFAULT_STEP_TIMEOUT",
    "CudaWait",
    "Given",
    "JobSettings",
    "OnNonfinite",
    "OnOverflow",
    "Settings",
    "Transport",
    "check_weights",
    "default_chunk_table",
    "find_cluster",
    "find_dedicated",
    "find_job",
    "find_local_ranks",
    "find_value",
    "find_worker",
    "find_world_size",
    "gloo_interfaces",
    "keep_gloo_on",
    "keep_gloo_on_loopback",
    "publish_job",
    "require_addresses",
    "require_job",
    "resolve",
    "resolve_debug",
    "resolve_key",
    "resolve_registry",
    "resolve_run",
    "resolve_run_id",
    "resolve_tls",
]
