"""``connect``: joins an elastic job, or founds it."""

from __future__ import annotations

import secrets
from typing import Any

from reducer_client import config, debug
from reducer_client.elastic import config as elastic_config
from reducer_client.elastic.candidates import LEASE_SECONDS
from reducer_client.elastic.discovery import Discover, Discovery, of_service
from reducer_client.elastic.document import INCARNATION_BYTES
from reducer_client.elastic.eras import Eras, Terms
from reducer_client.elastic.layout import Layout
from reducer_client.elastic.members import ElasticGroup, OnChange
from reducer_client.elastic.record import JobRecord
from reducer_client.elastic.state import State, layout_of
from reducer_client.registry.daemon import DaemonRegistry
from reducer_client.registry.interface import Lease, Registry
from reducer_client.trust import Trust, resolve_trust


def connect(
    addresses: str | list[str] | None = None,
    *,
    workers: int | None = None,
    min_workers: int | None = None,
    registry: str | Registry | None = None,
    state: State | None = None,
    on_change: OnChange | None = None,
    job: str | None = None,
    run_id: str | None = None,
    rank: int | None = None,
    join_timeout: float = 300.0,
    discover: Discover | None = None,
    key: bytes | None = None,
    key_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    **settings: Any,
) -> ElasticGroup:
    """Join a job whose workers come and go. Returns when this worker is in.

    The first ``workers`` processes of a run found the job together. A process that comes later is
    taken in at the end of a step, with the state of the others. If all processes are dead, the next
    ``workers`` processes found the job anew, without a state.

    Args:
        addresses, job, key, key_file, tls_cert, tls_key, tls_ca: as for `reducer_client.connect`.
        workers: number of workers with which the job starts. By default ``REDUCER_WORKERS``.
        min_workers: with fewer workers, all raise PeerLostError. By default
            ``REDUCER_MIN_WORKERS``, else 1.
        registry: address of a reducer that keeps a registry (``reducer serve --registry FILE``), or
            a registry. By default ``REDUCER_REGISTRY``, else the first reducer.
        state: what a worker that joins gets from the others. Without a state, nobody can join.
        on_change: called with the members after each change, on a thread of the client.
        run_id: names this run of the job. By default ``REDUCER_RUN_ID``, else "main". Launchers'
            own ids are not used: some give each restart of a worker another one.
        rank: the rank that this worker would like to have when the job is founded. By default
            ``REDUCER_RANK``.
        join_timeout: seconds until the job must have been founded, or have taken this worker in.
        discover: function that returns the addresses of the reducers that the job should use now.
            It is called every 5 s on a thread of its own; when its answer on rank 0 has changed, a
            new era begins on these reducers at the end of a step. By default the addresses of the
            name in ``REDUCER_DISCOVER`` (``name:port``), such as a headless service.
        settings: further settings of `reducer_client.connect`.

    Raises:
        ValueError: a setting is missing or invalid.
        JoinError: too few workers came within ``join_timeout``, the job did not take this worker
            in, or its state differs from the others' in names, shapes or dtypes.
        ReducerUnavailableError: the registry or the reducers cannot be reached.
        ReducerError: other subclasses, as for `reducer_client.connect`.
    """
    debug.follow_environment()
    size = elastic_config.resolve_workers(workers)
    given = config.Given(
        addresses=addresses, job=job, rank=0, world_size=size, run_id="x", key=key,
        key_file=key_file, tls_cert=tls_cert, tls_key=tls_key, tls_ca=tls_ca, **settings,
    )  # fmt: skip
    resolved = config.resolve(given)
    trust = resolve_trust(resolved.job, given)
    terms = resolve_terms(
        resolved, trust, min_workers=min_workers, run_id=run_id, rank=rank, discover=discover,
        has_chunk_table="chunk_table" in settings,
    )  # fmt: skip
    record = open_record(terms, registry)
    try:
        layout = layout_of(state)
        lease = take_lease(terms, record, layout)
        document = Eras(terms, record, layout).first(join_timeout)
        return ElasticGroup(terms, record, lease, document, state, on_change)
    except BaseException:
        terms.stop_discovery()
        record.close()  # ends the lease, too
        raise


def resolve_terms(
    settings: config.Settings,
    trust: Trust,
    *,
    min_workers: int | None = None,
    run_id: str | None = None,
    rank: int | None = None,
    discover: Discover | None = None,
    has_chunk_table: bool = False,
    survives: bool = True,
) -> Terms:
    """What a new worker brings to a job that starts with ``settings.world_size`` workers.

    Raises ValueError.
    """
    service = elastic_config.find_service()
    if discover is None and service:
        discover = of_service(service)
    return Terms(
        settings,
        trust,
        run=elastic_config.resolve_run(run_id),
        me=secrets.token_bytes(INCARNATION_BYTES),
        wish=elastic_config.resolve_wish(rank),
        size=settings.world_size,
        min_workers=elastic_config.resolve_count(
            "min_workers", "REDUCER_MIN_WORKERS", min_workers, 1
        ),
        has_chunk_table=has_chunk_table,
        discovery=None if discover is None else Discovery(discover),
        survives=survives,
    )


def open_record(terms: Terms, registry: str | Registry | None = None) -> JobRecord:
    """The job's record in this registry. Raises the errors of `Registry.get`."""
    opened: Registry | None = None
    try:
        if registry is None or isinstance(registry, str):
            address = config.resolve_registry(registry, terms.settings.addresses)
            trust = terms.trust
            opened = DaemonRegistry(address, terms.settings.job, key=trust.key, tls=trust.tls)
        else:
            opened = registry
        return JobRecord(opened, terms.run)
    except BaseException:
        terms.stop_discovery()
        if opened is not None:
            opened.close()
        raise


def take_lease(terms: Terms, record: JobRecord, layout: Layout) -> Lease:
    """Put this worker into the record. Raises the errors of `Registry.lease`."""
    value = terms.candidate(layout.digest).encode()
    return record.registry.lease(record.name, terms.me.hex(), value, LEASE_SECONDS)
