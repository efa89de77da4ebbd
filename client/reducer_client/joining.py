"""Joining a job: settings, the engine's connections, the group."""

from __future__ import annotations

from collections.abc import Sequence

from reducer_client import config, debug
from reducer_client.engine import Engine, EngineError
from reducer_client.errors import from_engine
from reducer_client.group import Group


def connect(
    addresses: str | Sequence[str] | None = None,
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    run_id: str | None = None,
    connect_timeout: float | None = None,
    step_timeout: float | None = None,
    silence: float | None = None,
    worker_silence: float | None = None,
    reducer_wait: float | None = None,
    on_overflow: config.OnOverflow = "flag",
    on_nonfinite: config.OnNonfinite = "propagate",
    chunk_table: Sequence[tuple[int, int]] | None = None,
    transport: config.Transport | None = None,
    congestion: str | None = None,
    source: str | None = None,
    digest_every: int | None = None,
    timeline: str | None = None,
    key: bytes | None = None,
    key_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
) -> Group:
    """Join a job on its reducers; returns once all ranks have joined.

    What is not given comes from the environment: ``REDUCER_ADDRS``, ``REDUCER_JOB``,
    ``REDUCER_RANK``, ``REDUCER_WORLD_SIZE``, ``REDUCER_RUN_ID``, then what the launcher or the
    cluster sets (torchrun, Horovod, Open MPI, Slurm, Vertex, Kubernetes); `reducer env` shows it.

    Args:
        addresses: ``host:port`` of every reducer, the same ones on all ranks; port 2222 by default,
            IPv6 in brackets. A string is split at commas.
        job: the name of the training run, equal on all ranks.
        run_id: one run of that name; by default rank 0 makes a random one for all. ``RUN#NAME`` is
            a group of workers of the run RUN, with ranks and a world size of its own: all its ranks
            give it, and any number of groups form at the same time.
        connect_timeout: seconds to reach every reducer and to meet all ranks; by default
            ``REDUCER_CONNECT_TIMEOUT``, else 60.
        step_timeout: seconds that ``Work.wait`` and ``barrier`` wait by default, else 300; and that
            a bucket of DDP has, else the timeout of the module's process group.
        silence: seconds without a byte after which a reducer is suspected; if there is another
            one, its part of the work goes there. By default ``REDUCER_SILENCE``, else 1.
        worker_silence: seconds, 1 to 3600, without a byte after which the reducers call a worker
            lost, and the job ends: more than this process may be stopped, or its machine suspended.
            By default ``REDUCER_WORKER_SILENCE``, else 5. Rank 0's is used by all.
        reducer_wait: seconds that open rounds wait for a reducer when there is no other; by default
            ``REDUCER_WAIT``, else 30.
        on_overflow: ``"error"`` makes ``wait`` raise NumericError where an integer result wrapped;
            ``"flag"`` only sets ``Work.overflow``.
        on_nonfinite: ``"error"`` makes ``wait`` raise NumericError where a rank contributed NaN or
            Inf, or the result is such: the same text on all ranks that ask for it, which names the
            rank; the group works on. ``"propagate"`` only sets ``Work.nonfinite`` and
            ``Work.nonfinite_rank``, and lets the values through, as gradient scalers need them.
        chunk_table: (least bytes of a round, bytes of its chunks); rank 0's is used by all.
        transport: ``"auto"`` takes a Unix socket to reducers on this machine that run as this
            user or as root, and TCP to all others; ``"tcp"`` takes TCP. By default
            ``REDUCER_TRANSPORT``, else ``"auto"``.
        congestion: TCP congestion control of this worker's connections, such as ``"cubic"``; by
            default ``REDUCER_CONGESTION``, else the system's.
        source: address, or name of an interface, that TCP connections of this worker come from; by
            default ``REDUCER_SOURCE``, else what the routes of the system say.
        digest_every: every so many rounds of a key the ranks compare a digest of their results; if
            they differ, every rank raises IntegrityError, which names the ranks, the key and the
            rounds, and the group ends. By default ``REDUCER_DIGEST_EVERY``, else 0: never. Rank
            0's is used by all.
        timeline: a folder, to which this worker adds a file that says what became of each round and
            when; viewers of Chrome traces, such as Perfetto, open it. It must be on a local disk:
            one that hangs would hold up the rounds. By default ``REDUCER_TIMELINE``; "" is none.
        key_file: file with the reducers' key or that of this job, as ``reducer keygen`` writes it.
            Every reducer must then prove that it has it, too. By default ``REDUCER_KEY_FILE``; ""
            is none.
        key: the bytes of the reducers' key instead, for programs that fetch secrets themselves.
        tls_cert: PEM file with this worker's certificate and its chain: TLS 1.3 then, and every
            reducer must have a certificate for the name or address in ``addresses``. It takes the
            system's OpenSSL. By default ``REDUCER_TLS_CERT``; "" is none.
        tls_key: PEM file with the key of that certificate; by default ``REDUCER_TLS_KEY``.
        tls_ca: PEM file with the CA that signs the reducers' certificates; by default
            ``REDUCER_TLS_CA``.

    Raises:
        ValueError: a setting is missing or bad; it names it and where it came from.
        AuthenticationError: a reducer could not prove the key or show a good certificate, refuses
            ours, or is of another mode; or this machine has no OpenSSL.
        ReducerUnavailableError: no reducer answers at an address.
        JoinError: the ranks do not fit together, or some did not come in time.
    """
    settings = config.resolve(
        addresses,
        job=job,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        connect_timeout=connect_timeout,
        step_timeout=step_timeout,
        silence=silence,
        worker_silence=worker_silence,
        reducer_wait=reducer_wait,
        on_overflow=on_overflow,
        on_nonfinite=on_nonfinite,
        chunk_table=chunk_table,
        transport=transport,
        congestion=congestion,
        source=source,
        digest_every=digest_every,
        timeline=timeline,
    )
    shown = config.resolve_debug()
    if shown is not None:
        debug.set_up(*shown)
    proof = config.resolve_key(settings.job, key, key_file)
    tls = config.resolve_tls(tls_cert, tls_key, tls_ca)
    if proof and tls:
        raise ValueError(
            "a key (key, key_file, REDUCER_KEY_FILE) and certificates (tls_cert, REDUCER_TLS_CERT "
            '...): expected one of them, got both; "" is none'
        )
    try:
        engine = Engine(
            addresses=list(settings.addresses),
            job=settings.job,
            run_id=settings.run_id,
            rank=settings.rank,
            world_size=settings.world_size,
            chunk_table=list(settings.chunk_table),
            connect_timeout=settings.connect_timeout,
            silence=settings.silence,
            reducer_wait=settings.reducer_wait,
            congestion=settings.congestion,
            source=settings.source,
            local_sockets=settings.transport == "auto",
            digest_every=settings.digest_every,
            worker_silence=settings.worker_silence,
            timeline=settings.timeline,
            key=proof,
            tls=tls,
        )
        engine.connect()
    except EngineError as error:
        raise from_engine(error.args) from None
    debug.joined(settings, engine, "tls" if tls else "psk" if proof else "open")
    return Group(settings, engine)
