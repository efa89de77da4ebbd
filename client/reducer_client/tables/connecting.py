"""``parameter_server``: resolves the settings and connects to the reducers."""

from __future__ import annotations

from collections.abc import Sequence

from reducer_client.config import JobSettings
from reducer_client.registry.interface import Registry
from reducer_client.tables.server import ParameterServer
from reducer_client.tables.settings import resolve
from reducer_client.trust import resolve_trust


def parameter_server(
    addresses: str | Sequence[str] | None = None,
    *,
    job: str | None = None,
    worker: int | None = None,
    workers: int | None = None,
    run_id: str | None = None,
    reader: bool = False,
    connect_timeout: float | None = None,
    reducer_wait: float | None = None,
    silence: float | None = None,
    timeout: float | None = None,
    replicas: int = 0,
    registry: str | Registry | None = None,
    key: bytes | None = None,
    key_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
) -> ParameterServer:
    """Connect to the reducers of a job, for tables. Returns when all lanes have answered.

    If ``addresses``, ``job``, ``worker``, ``workers`` or ``run_id`` is None, its value comes from
    ``REDUCER_ADDRS``, ``REDUCER_JOB``, ``REDUCER_RANK``, ``REDUCER_WORLD_SIZE`` or
    ``REDUCER_RUN_ID``, else from the variables of the launcher or the cluster, as in `connect`.

    Args:
        addresses: ``host:port`` of every reducer, in the same order on all workers.
        job: name of the job, equal on all workers.
        worker: the number of this worker, from 0 on, different on every worker. A process that
            starts again with the number of another one takes its place.
        workers: the number of workers; tables with common steps need it.
        run_id: id of this run of the job; tables of other runs are others. "" by default.
        reader: this process only pulls, and has no number: an evaluator, for example.
        connect_timeout: seconds in which all reducers must be reached. By default
            ``REDUCER_CONNECT_TIMEOUT``, else 60.
        reducer_wait: seconds after which a reducer that cannot be reached ends the parameter
            server. By default ``REDUCER_WAIT``, else 30.
        silence: seconds without a byte after which a connection counts as lost and is made again.
            By default ``REDUCER_SILENCE``, else 5; with ``replicas=1`` the part moves to its
            backup, and the default is 1.
        timeout: default of all timeouts of pushes, pulls and calls, in seconds; by default 300.
        replicas: 1 keeps a backup of each part of a table on another reducer, so that nothing is
            lost with one reducer; equal on all workers. It takes twice the memory.
        registry: with ``replicas=1``, the address of the reducer whose registry says where each
            part is (it was started with ``--registry``), or a registry object. By default
            ``REDUCER_REGISTRY``, else the first reducer.
        key, key_file, tls_cert, tls_key, tls_ca: as in `connect`.

    Raises:
        ValueError: a setting is missing or invalid.
        AuthenticationError: a reducer and this client do not trust each other.
        ReducerUnavailableError: a reducer could not be reached within ``connect_timeout``.
        JoinError: the list of addresses names a reducer twice.
        QuotaExceededError: the job would exceed its share of connections.
        ProtocolError: the process at an address is not a reducer, or is too old for tables.
    """
    settings = resolve(
        addresses,
        job=job,
        worker=worker,
        workers=workers,
        run_id=run_id,
        reader=reader,
        connect_timeout=connect_timeout,
        reducer_wait=reducer_wait,
        silence=silence,
        timeout=timeout,
        replicas=replicas,
        registry=registry if isinstance(registry, str) else None,
    )
    trust = resolve_trust(
        settings.job,
        JobSettings(key=key, key_file=key_file, tls_cert=tls_cert, tls_key=tls_key, tls_ca=tls_ca),
    )
    given = None if registry is None or isinstance(registry, str) else registry
    return ParameterServer(settings, trust, given if replicas else None)
