"""Settings of a group: precedence, defaults and clear errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reducer_client import config

UUID = "0d9b2a52-52ca-4d4e-9f3e-0c1d1a2b3c4d"
BASE = {
    "REDUCER_ADDRS": "a:1,b",
    "REDUCER_JOB": "env-job",
    "RANK": "1",
    "WORLD_SIZE": "4",
}


def resolve(environ: dict[str, str] | None = None, **arguments: Any) -> config.Settings:
    return config.resolve(config.Given(**arguments), BASE if environ is None else environ)


def test_the_heaviest_share_decides_the_chunks() -> None:
    settings = resolve(addresses="a,b,c,d", weights=(3, 3, 1, 1))
    assert settings.weights == (3, 3, 1, 1)
    assert settings.chunk_table == config.default_chunk_table(2)
    assert resolve(addresses="a,b", weights=(5, 5)).weights == ()


def test_the_environment_is_enough() -> None:
    settings = resolve()
    assert settings.addresses == ("a:1", "b:2222")
    assert (settings.job, settings.rank, settings.world_size) == ("env-job", 1, 4)
    assert settings.run_id == ""
    assert settings.chunk_table == config.default_chunk_table(2)
    assert settings.weights == ()
    assert (settings.transport, settings.congestion) == ("auto", "")


@pytest.mark.parametrize(
    ("name", "variable", "default"),
    [
        ("connect_timeout", "REDUCER_CONNECT_TIMEOUT", 60),
        ("silence", "REDUCER_SILENCE", 1),
        ("worker_silence", "REDUCER_WORKER_SILENCE", 5),
        ("reducer_wait", "REDUCER_WAIT", 30),
    ],
)
def test_times_come_from_the_environment(name: str, variable: str, default: float) -> None:
    assert getattr(resolve(), name) == default
    assert getattr(resolve(BASE | {variable: ""}), name) == default
    assert getattr(resolve(BASE | {variable: "2.5"}), name) == 2.5
    assert getattr(resolve(BASE | {variable: "2.5"}, **{name: 7}), name) == 7


def test_debug_is_checked() -> None:
    assert config.resolve_debug({}) is None
    wanted = config.resolve_debug({"REDUCER_DEBUG": "trace:join", "REDUCER_LOG_FORMAT": "json"})
    assert wanted == ((logging.DEBUG, ("join",)), "json")
    with pytest.raises(ValueError, match="REDUCER_DEBUG='loud': expected warn"):
        config.resolve_debug({"REDUCER_DEBUG": "loud"})
    with pytest.raises(ValueError, match="REDUCER_LOG_FORMAT='xml'"):
        config.resolve_debug({"REDUCER_DEBUG": "info", "REDUCER_LOG_FORMAT": "xml"})


REPLICA = {
    "cluster": {"workerpool0": ["p"], "workerpool1": ["w"], "workerpool2": ["r:7", "s"]},
    "task": {"type": "workerpool1", "index": 0, "trial": "2"},
}


def test_a_cluster_spec_is_enough() -> None:
    settings = resolve({"CLUSTER_SPEC": json.dumps(REPLICA)})
    assert settings.addresses == ("r:7", "s:2222")
    assert (settings.job, settings.rank, settings.world_size) == ("training-trial-2", 1, 2)


@pytest.mark.parametrize(
    ("kind", "role"), [("workerpool2", "reducer"), ("workerpool3", "evaluator")]
)
def test_a_replica_without_a_rank_is_told_its_role(kind: str, role: str) -> None:
    spec = {**REPLICA, "task": {"type": kind, "index": 0}}
    with pytest.raises(ValueError, match=f"no rank .CLUSTER_SPEC: this replica is: {role}"):
        resolve({"CLUSTER_SPEC": json.dumps(spec)})


def test_arguments_win_over_our_variables_and_those_over_torchruns() -> None:
    environ = BASE | {"REDUCER_RANK": "2", "REDUCER_WORLD_SIZE": "8"}
    assert (resolve(environ).rank, resolve(environ).world_size) == (2, 8)
    settings = resolve(environ, addresses=["c"], job="mine", rank=0, world_size=1, run_id="r")
    assert settings.addresses == ("c:2222",)
    assert (settings.job, settings.rank, settings.world_size) == ("mine", 0, 1)
    assert settings.run_id == "r"


@pytest.mark.parametrize(
    ("extra", "run_id"),
    [
        ({"TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": "3"}, "job7.3"),
        ({"TORCHELASTIC_RUN_ID": "job7"}, "job7.0"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "job7", "REDUCER_RUN_ID": "ours"}, "ours"),
        ({}, ""),
    ],
)
def test_the_run_id_comes_from_the_launcher(extra: dict[str, str], run_id: str) -> None:
    assert resolve(BASE | extra).run_id == run_id


def test_files_of_mode_tls(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("tls_cert", "tls_key", "tls_ca")}
    for path in files.values():
        path.touch(0o600)
    paths = {name: str(path) for name, path in files.items()}
    environ = {f"REDUCER_{name.upper()}": path for name, path in paths.items()}
    expected = (paths["tls_cert"], paths["tls_key"], paths["tls_ca"])
    assert config.resolve_tls(**paths, environ={}) == expected
    assert config.resolve_tls(environ=environ) == expected
    assert config.resolve_tls(environ={}) is None
    assert config.resolve_tls("", "", "", environ=environ) is None
    with pytest.raises(ValueError, match=r"missing: tls_ca$"):
        config.resolve_tls(tls_ca="", environ=environ)
    files["tls_key"].chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        config.resolve_tls(environ=environ)
    files["tls_ca"].unlink()
    with pytest.raises(ValueError, match=r"tls_ca .*: No such file"):
        config.resolve_tls(environ=environ)


def test_rank_0_alone_makes_a_run_id_and_another_each_time() -> None:
    first, second = (resolve(rank=0).run_id for _ in range(2))
    assert len(first) == 16
    assert first != second


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("host", "host:2222"),
        (" 10.0.0.1:80 ", "10.0.0.1:80"),
        ("[fe80::1]", "[fe80::1]:2222"),
        ("[::1]:007", "[::1]:7"),
    ],
)
def test_addresses_take_the_default_port_and_ipv6_in_brackets(given: str, address: str) -> None:
    assert resolve(addresses=[given]).addresses == (address,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"addresses": []}, "no reducer addresses: give them"),
        ({"addresses": "a,b:2222,a:2222"}, "a:2222 is listed twice"),
        ({"addresses": ["::1"]}, "goes in brackets"),
        ({"addresses": ["[::1"]}, "expected .ipv6.:port"),
        ({"addresses": ["a:0"]}, "not a number from 1 to 65535"),
        ({"addresses": ["a:http"]}, "not a number"),
        ({"addresses": ["http://a/"]}, "not a number|expected host"),
        ({"addresses": [":2222"]}, "expected host"),
        ({"job": ""}, "no job name"),
        ({"job": "j" * 129}, "job: expected at most 128 bytes, got 129"),
        ({"run_id": "j" * 129}, "run_id: expected at most 128 bytes, got 129"),
        ({"rank": 4}, "rank 4: expected 0 to 3"),
        ({"rank": -1}, "rank -1"),
        ({"world_size": 0}, "world_size 0: expected 1 to 8192"),
        ({"world_size": 8193}, "expected 1 to 8192"),
        ({"connect_timeout": 0}, "connect_timeout=0: expected seconds"),
        ({"step_timeout": float("nan")}, "step_timeout=nan"),
        ({"on_overflow": "raise"}, "on_overflow='raise'"),
        ({"transport": "rdma"}, "transport='rdma': expected one of auto, tcp"),
        ({"congestion": "pigeon"}, r"congestion='pigeon': .*this kernel has .*reno"),
        ({"source": "eth99"}, "source='eth99': expected an address .*of its interfaces .*lo"),
        ({"source": "192.0.2.1"}, "source='192.0.2.1': expected an address of this machine"),
        ({"chunk_table": []}, "1 to 16 rows, the first"),
        ({"chunk_table": [(1, 64)]}, "for rounds from 0 bytes"),
        ({"chunk_table": [(0, 64), (0, 64)]}, "ascending minimum bytes"),
        ({"chunk_table": [(0, 100)]}, "multiple of 64"),
        ({"weights": (1, 2, 3)}, r"expected 2, one for each reducer, got 3: \(1, 2, 3\)"),
        ({"weights": (1, 0)}, "expected numbers from 1 on"),
        ({"weights": (4_096, 1)}, "a sum of at most 4,096"),
        ({"digest_every": "x"}, "^digest_every='x': expected an integer"),
        ({"io_threads": 17}, "^io_threads=17: expected 0 to 16"),
        ({"chunk_table": [(0, 8 << 20)]}, "up to 4194304"),
    ],
)
def test_a_bad_value_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        resolve(**arguments)


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({}, "or --rank of a command\\), or set REDUCER_RANK"),
        (BASE | {"RANK": "first"}, "RANK='first': expected an integer"),
        (BASE | {"REDUCER_WORLD_SIZE": "2.0"}, "REDUCER_WORLD_SIZE='2.0'"),
        (BASE | {"REDUCER_TRANSPORT": "shm"}, "REDUCER_TRANSPORT='shm'"),
        (BASE | {"REDUCER_CONGESTION": "pigeon"}, "REDUCER_CONGESTION='pigeon'"),
        (BASE | {"REDUCER_SOURCE": "eth99"}, "REDUCER_SOURCE='eth99'"),
        (BASE | {"REDUCER_CONNECT_TIMEOUT": "1m"}, "REDUCER_CONNECT_TIMEOUT='1m': expected sec"),
        (BASE | {"REDUCER_WAIT": "0"}, "REDUCER_WAIT='0': expected seconds above 0"),
        (BASE | {"REDUCER_DIGEST_EVERY": "x"}, "^REDUCER_DIGEST_EVERY='x': expected an integer"),
        (BASE | {"REDUCER_IO_THREADS": "-1"}, "^REDUCER_IO_THREADS='-1': expected 0 to 16"),
        (
            BASE | {"REDUCER_CUDA_WAIT": "gpu"},
            "^REDUCER_CUDA_WAIT='gpu': expected one of host, stream",
        ),
        ({k: v for k, v in BASE.items() if k != "REDUCER_JOB"}, "REDUCER_JOB"),
        ({k: v for k, v in BASE.items() if k != "REDUCER_ADDRS"}, "REDUCER_ADDRS"),
    ],
)
def test_a_bad_variable_is_named(environ: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        resolve(environ)


@pytest.mark.parametrize(
    ("source", "kept"), [("", ""), ("lo", "lo"), ("127.0.0.7", "127.0.0.7"), ("[::1]", "::1")]
)
def test_a_source_is_an_address_of_this_machine_or_an_interface(source: str, kept: str) -> None:
    assert resolve(BASE | {"REDUCER_SOURCE": source}).source == kept
    assert resolve(BASE | {"REDUCER_SOURCE": "nonsense"}, source=source).source == kept


@pytest.mark.parametrize(
    ("queues", "expected"), [("", "stream"), ("8", "stream"), ("32", "stream"), ("1", "host")]
)
def test_the_host_waits_where_streams_may_share_a_hardware_queue(
    queues: str, expected: str
) -> None:
    environ = BASE | {"REDUCER_CUDA_WAIT": "stream", "CUDA_DEVICE_MAX_CONNECTIONS": queues}
    assert resolve(environ=environ).cuda_wait == expected
    assert resolve(environ=BASE).cuda_wait == "host"


@pytest.mark.parametrize(
    ("environ", "program", "job"),
    [
        ({"REDUCER_JOB": "mine"}, "train.py", "mine"),
        ({"REDUCER_JOB": UUID, "TORCHELASTIC_RUN_ID": UUID}, "train.py", UUID),
        ({"TORCHELASTIC_RUN_ID": "resnet"}, "train.py", "resnet"),
        # torchrun --standalone
        ({"TORCHELASTIC_RUN_ID": UUID}, "/a/train.py", "train"),
        ({}, "train.py", "train"),
    ],
)
def test_a_job_of_torch_without_a_name_has_that_of_the_script(
    environ: dict[str, str], program: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert config.resolve_run("a", None, environ)[0] == job


def test_an_interactive_job_has_a_random_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["-c"])
    names = {config.resolve_run("a", None, {})[0] for _ in range(2)}
    assert len(names) == 2 and all(name.startswith("torch-") for name in names)
