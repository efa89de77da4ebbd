"""``connect``: resolves the settings, connects the engine and returns the group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256

from reducer.cluster.discovery import OWN_CLUSTER_JOB
from reducer.wire.handshake import job_key
from reducer_client import config, debug
from reducer_client.config import Given
from reducer_client.config.hosting import (
    find_launch,
    find_meeting,
    needs_meeting,
    resolve_hosting,
)
from reducer_client.engine import Engine, EngineError
from reducer_client.errors import JoinError, from_engine, of_hosted
from reducer_client.group import Group
from reducer_client.hosted.forming import form
from reducer_client.hosted.hosting import Hosted, Hosting
from reducer_client.hosted.reducers import Reducers
from reducer_client.meeting_place import GroupMeeting, reducer_of_rank_0
from reducer_client.reports import logger
from reducer_client.trust import Trust, resolve_trust

_GRACE = 5.0
_TELL_SECONDS = 1.0  # between two looks at what the engine has to tell
# The reducers of a run are up, or have been down for long.
_GRACE_BESIDE = 1.0


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
    on_overflow: config.OnOverflow | None = None,
    on_nonfinite: config.OnNonfinite | None = None,
    chunk_table: Sequence[tuple[int, int]] | None = None,
    weights: Sequence[int] | None = None,
    min_reducers: int | None = None,
    transport: config.Transport | None = None,
    congestion: str | None = None,
    source: str | None = None,
    digest_every: int | None = None,
    io_threads: int | None = None,
    timeline: str | None = None,
    hosted: Hosted | None = None,
    cuda_wait: config.CudaWait | None = None,
    key: bytes | None = None,
    key_file: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
) -> Group:
    """Join a job on its reducers. Returns when all ranks have joined.

    If ``addresses``, ``job``, ``rank``, ``world_size`` or ``run_id`` is None, its value comes from
    ``REDUCER_ADDRS``, ``REDUCER_JOB``, ``REDUCER_RANK``, ``REDUCER_WORLD_SIZE`` or
    ``REDUCER_RUN_ID``, else from the variables of the launcher or the cluster (torchrun, Horovod,
    Open MPI, Slurm, Vertex, Kubernetes). `reducer env` shows each value and its source.

    Args:
        addresses: ``host:port`` of every reducer; all ranks give the same reducers. The port is
            2222 by default, and IPv6 addresses are in brackets. A string is split at commas.
        job: name of the job, equal on all ranks.
        rank: this worker's number, from 0 to ``world_size - 1``, different on every rank.
        world_size: number of workers, equal on all ranks.
        run_id: id of this run of the job. By default rank 0 makes a random one for all ranks.
            ``RUN#NAME`` makes a group of some workers of the run RUN, with its own ranks and world
            size. All members must give the id. Any number of groups may form at the same time.
        connect_timeout: seconds in which all reducers must be reached and all ranks must join. By
            default ``REDUCER_CONNECT_TIMEOUT``, else 60.
        step_timeout: default timeout in seconds of ``Work.wait`` and ``barrier`` (else 300), and
            timeout of a DDP bucket (else the timeout of the module's process group). By default
            ``REDUCER_STEP_TIMEOUT``.
        silence: seconds without a byte after which this worker suspects a reducer. The other
            reducers then take over its part of the work. By default ``REDUCER_SILENCE``, else 1.
        worker_silence: seconds (1 to 3600) without a byte after which the reducers declare a worker
            lost and the job ends. Choose more than the longest time for which a worker process may
            be stopped or its machine suspended. By default ``REDUCER_WORKER_SILENCE``, else 5. All
            ranks use the value of rank 0.
        reducer_wait: seconds for which open rounds wait for a reducer while none is live. By
            default ``REDUCER_WAIT``, else 30.
        on_overflow: ``"error"`` makes ``wait`` raise NumericError if an integer result wrapped.
            ``"flag"`` only sets ``Work.overflow``. By default ``REDUCER_ON_OVERFLOW``, else
            ``"flag"``.
        on_nonfinite: ``"error"`` makes ``wait`` raise NumericError if a contribution or the result
            has NaN or Inf. The error names the contributing rank, with the same text on every rank
            that uses ``"error"``, and the group stays usable. ``"propagate"`` returns the values
            and only sets ``Work.nonfinite`` and ``Work.nonfinite_rank``; gradient scalers need it.
            By default ``REDUCER_ON_NONFINITE``, else ``"propagate"``.
        chunk_table: rows of (minimum bytes of a round, bytes of its chunks), ascending from 0. The
            default is ``REDUCER_CHUNK_TABLE``, such as ``0:64KiB,1MiB:256KiB``, else depends on the
            number of reducers. All ranks use the table of rank 0.
        weights: shares of the work for each reducer of ``addresses``, such as ``(3, 3, 1)`` for
            NICs of 30, 30 and 10 Gbit/s. By default ``REDUCER_WEIGHTS``, else all reducers get the
            same share. All ranks use the weights of rank 0.
        min_reducers: number of reducers without which the job does not start. If some reducers do
            not answer within 5 s, the job starts without them, and takes them in when they come. By
            default ``REDUCER_MIN_REDUCERS``, else 1. All ranks use the value of rank 0.
        transport: ``"auto"`` uses Unix sockets to reducers on this machine that run as this user or
            as root, and TCP to all others. ``"tcp"`` always uses TCP. By default
            ``REDUCER_TRANSPORT``, else ``"auto"``.
        congestion: TCP congestion control of this worker's connections, such as ``"cubic"``. By
            default ``REDUCER_CONGESTION``, else the system's.
        source: local address, or name of the interface, of this worker's TCP connections. By
            default ``REDUCER_SOURCE``, else the system's routes decide.
        digest_every: number of rounds of a key after which the ranks compare a digest of their
            results; 0 means never. If the results differ, every rank raises IntegrityError, which
            names the ranks, the key and the rounds, and the group ends. By default
            ``REDUCER_DIGEST_EVERY``, else 0. All ranks use the value of rank 0.
        io_threads: threads (1 to 16) that move this worker's bytes; each owns the connections of
            some lanes. By default ``REDUCER_IO_THREADS``, else one for each 20 Gbit/s of the NIC,
            on a quarter of the cores at most.
        timeline: folder in which this worker writes a trace file of its rounds, for viewers of
            Chrome traces such as Perfetto; "" means none. The folder must be on a local disk,
            because a file system that hangs would delay the rounds. By default
            ``REDUCER_TIMELINE``.
        hosted: whether reducers run on the workers' machines, too, one on each; rank 0's client and
            one client on every other machine start them. ``"auto"`` does so if there are no other
            reducers, or if the launcher's variables show more workers than reducers, on several
            machines, and hosted reducers shorten the network time. True and False decide. By
            default ``REDUCER_HOSTED``, else ``"auto"``. Equal on all ranks. See docs/hosted.md.
        cuda_wait: ``"stream"`` makes only the stream wait for results on CUDA devices, as NCCL
            does; ``"host"`` makes the host wait. By default ``REDUCER_CUDA_WAIT``, else ``"host"``.
            See docs/gpu.md.
        key: the reducers' key as bytes, for programs that fetch secrets themselves.
        key_file: file with the reducers' key or this job's key, as ``reducer keygen`` writes it;
            "" means none. Every reducer must prove that it has the key. By default
            ``REDUCER_KEY_FILE``.
        tls_cert: PEM file with this worker's certificate and chain; "" means none. Connections then
            use TLS 1.3 and the system's OpenSSL, and every reducer needs a certificate for its name
            or address in ``addresses``. By default ``REDUCER_TLS_CERT``.
        tls_key: PEM file with the private key of ``tls_cert``. By default ``REDUCER_TLS_KEY``.
        tls_ca: PEM file with the CA of the reducers' certificates. By default ``REDUCER_TLS_CA``.

    Raises:
        ValueError: a setting is missing or invalid. The text names the setting and its source.
        TypeError: ``key`` is not bytes.
        AuthenticationError: a reducer has neither our key nor a valid certificate, refuses ours, or
            has another security mode; or this machine has no OpenSSL.
        ReducerUnavailableError: fewer than ``min_reducers`` reducers answered within
            ``connect_timeout``, or a hosted reducer did not start.
        JoinError: the ranks contradict each other, some did not join in ``connect_timeout``, or a
            rank does not reach the hosted reducer of another machine.
        QuotaExceededError: a reducer has too little free memory for the job, or the job would
            exceed its share of runs, connections or reducers.
        ProtocolError: the process at an address is not a reducer, or (ProtocolVersionError) has
            another major version of the protocol.
    """
    return connect_given(
        Given(
            addresses=addresses,
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
            weights=weights,
            min_reducers=min_reducers,
            transport=transport,
            congestion=congestion,
            source=source,
            digest_every=digest_every,
            io_threads=io_threads,
            timeline=None if timeline is None else os.fspath(timeline),
            hosted=hosted,
            cuda_wait=cuda_wait,
            key=key,
            key_file=key_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
        )
    )


def connect_given(given: Given) -> Group:
    """`connect` with these settings."""
    debug.follow_environment()
    dedicated = config.find_dedicated(given.addresses)
    hosting = resolve_hosting(given)
    if given.weights:
        hosting = hosting.with_weights_given()
    if "#" in (given.run_id or ""):  # some ranks of a run, which have its reducers
        hosting = replace(hosting, wanted=False)
    # Before hosted reducers are known: a cluster that lists its reducers names the job as well.
    job = config.find_job(given.addresses, given.job)
    if job is None and not dedicated and hosting.wanted:
        job = OWN_CLUSTER_JOB  # hosted reducers serve no other job
    given = replace(given, job=job)
    if not _needs_meeting(given, hosting, len(dedicated)):
        settings = config.resolve(given)
        return join(settings, resolve_trust(settings.job, given), Reducers(settings.addresses))
    reducers = _meet(given, hosting, dedicated)
    with reducers.stopped_on_error():
        given = replace(given, addresses=reducers.addresses, weights=reducers.weights)
        settings = config.resolve(given)
        if settings.rank == 0:
            _warn_of_flat_ranks(reducers)
        return join(settings, resolve_trust(settings.job, given), reducers)


def _needs_meeting(given: Given, hosting: Hosting, dedicated: int) -> bool:
    size = config.find_world_size(given.rank, given.world_size)
    _, here = config.find_local_ranks()
    tls = config.resolve_tls(given.tls_cert, given.tls_key, given.tls_ca) is not None
    several = (here or size) < size
    return needs_meeting(hosting, dedicated, size, several_machines=several, tls=tls)


def join(
    settings: config.Settings, trust: Trust, reducers: Reducers, grace: float = _GRACE
) -> Group:
    """Join a job on these reducers. Raises the ReducerErrors of `connect`.

    ``grace``: seconds after which the job starts without reducers that do not answer.
    """
    engine = make_engine(settings, trust, reducers, grace)
    start(engine)
    debug.joined(settings, engine, trust.mode, reducers)
    return Group(settings, engine, reducers, trust)


def make_engine(
    settings: config.Settings,
    trust: Trust,
    reducers: Reducers,
    grace: float = _GRACE,
    incarnation: bytes = b"",
) -> Engine:
    """The engine of a worker that has not joined yet. Raises ReducerErrors.

    With ``incarnation``, the run goes on without ranks that are lost.
    """
    try:
        return Engine(
            addresses=list(settings.addresses),
            job=settings.job,
            run_id=settings.run_id,
            rank=settings.rank,
            world_size=settings.world_size,
            chunk_table=list(settings.chunk_table),
            weights=list(settings.weights),
            min_reducers=settings.min_reducers,
            grace=grace,
            connect_timeout=settings.connect_timeout,
            silence=settings.silence,
            reducer_wait=settings.reducer_wait,
            congestion=settings.congestion,
            source=settings.source,
            local_sockets=settings.transport == "auto",
            digest_every=settings.digest_every,
            worker_silence=settings.worker_silence,
            io_threads=settings.io_threads,
            timeline=settings.timeline,
            key=trust.key,
            tls=trust.tls,
            hosted=reducers.hosted,
            hosted_key=job_key(reducers.key, settings.job) if reducers.key else b"",
            elastic=bool(incarnation),
            incarnation=incarnation,
        )
    except EngineError as error:
        raise from_engine(error.args) from None


def start(engine: Engine) -> None:
    """Return when the engine has joined its run. Logs whom it waits for. Raises ReducerErrors."""
    try:
        while not engine.connect(_TELL_SECONDS):
            for line in engine.take_reports():
                logger.warning("%s", line)
    except EngineError as error:
        raise from_engine(error.args) from None


def join_beside(
    group: Group,
    *,
    rank: int,
    world_size: int,
    run_id: str,
    connect_timeout: float,
    step_timeout: float | None,
) -> Group:
    """Join a group of some ranks of this group's run, on the same reducers."""
    settings = replace(
        group.settings,
        rank=rank,
        world_size=world_size,
        run_id=run_id,
        connect_timeout=connect_timeout,
        step_timeout=step_timeout,
    )
    return join(settings, group.trust, group.reducers_in_use.of_others(), _GRACE_BESIDE)


def _warn_of_flat_ranks(reducers: Reducers) -> None:
    """Each rank of a machine sends its own array over the machine's NIC."""
    most = max(map(len, reducers.hosted), default=1)
    if len(reducers.hosted) > 1 and most > 1:
        logger.warning(
            "%d ranks share a machine, and each sends its own gradients: the NIC carries them %d "
            "times. The backend of torch sums within the machine first "
            '(init_process_group("reducer"))',
            *(most, most),
        )


def _meet(given: Given, hosting: Hosting, dedicated: tuple[str, ...]) -> Reducers:
    """Meet all other ranks over the dedicated reducers, or over one of rank 0."""
    _, here = config.find_local_ranks()
    one_machine = here == config.find_world_size(given.rank, given.world_size)
    places = dedicated or (find_meeting(one_machine),)
    # A run of its own: a rank that does not meet must not take the meeting for the job, and two
    # jobs must not meet each other.
    launch = find_launch(given.run_id) or given.job or ""
    name = sha256(launch.encode()).hexdigest()[:32]
    settings = config.resolve(
        replace(given, addresses=places, weights=(), min_reducers=1, timeline="")
    )
    settings = replace(settings, run_id=f"{name}#ranks")
    trust = resolve_trust(settings.job, given)
    meets_at = Reducers(places) if dedicated else Reducers(places, (), ((0,),), trust.key)
    with of_hosted(), ExitStack() as stack:
        if settings.rank == 0 and not dedicated:
            serving = reducer_of_rank_0(places[0], trust.key, settings.connect_timeout)
            stack.enter_context(serving)
        try:
            group = stack.enter_context(join(settings, trust, meets_at))
        except JoinError as error:
            raise JoinError(
                "before the job starts, its ranks meet to choose the reducers (hosted and "
                f"REDUCER_HOSTED must be equal on all ranks): {error}"
            ) from None
        meeting = GroupMeeting(group, settings.connect_timeout)
        reducers = form(meeting, settings.rank, hosting, dedicated, key=trust.key)
        with reducers.stopped_on_error():
            stack.close()  # leaves the meeting
        return reducers
