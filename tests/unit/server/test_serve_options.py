"""The option table: parsing, precedence, refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from reducer import units
from reducer.cli import main
from reducer.core.surface.settings import LaneSettings
from reducer.cores import usable_cores
from reducer.server import serve_options
from reducer.server.serve_options import Config, ConfigError, load

ROOT = Path(serve_options.__file__).resolve().parent


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("256MiB", 256 << 20), ("8 GiB", 8 << 30), ("8GB", 8 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size
    assert units.parse_size(units.format_size(size)) == size


@pytest.mark.parametrize("text", ["", "8G", "-1", "MiB", "1e9", "8GiB8", "0x10"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("10s", 10.0), ("250ms", 0.25), ("2m", 120.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == seconds
    assert units.parse_seconds(units.format_seconds(seconds)) == seconds


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('port = 1\nlanes = 1\ncredit = "1MiB"\n', encoding="utf-8")
    env = {"REDUCER_PORT": "2", "REDUCER_LANES": "2", "REDUCER_CONFIG": str(file)}
    found = load({"port": "3"}, env=env)
    assert (found.config.port, found.sources["port"]) == (3, "command line --port")
    assert (found.config.lanes, found.sources["lanes"]) == (2, "environment REDUCER_LANES")
    assert (found.config.credit, found.sources["credit"]) == (1 << 20, f"file {file}")
    assert (found.config.memory, found.sources["memory"]) == (8 << 30, "default")


def test_the_file_of_the_command_line_beats_that_of_the_environment(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"port = {ord(name)}\n", encoding="utf-8")
    found = load({}, file=str(tmp_path / "a"), env={"REDUCER_CONFIG": str(tmp_path / "b")})
    assert found.config.port == ord("a")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("port", "70000", "at most 65535"),
        ("port", "x", "whole number"),
        ("port", "-1", "at least 0"),
        ("lanes", "0", "'auto' or a number of 1 or more"),
        ("memory", "lots", "expected a size"),
        ("memory", "1KiB", "at least 1MiB"),
        ("log_format", "xml", "one of text, json"),
        ("debug", "loud", "expected warn, info, trace"),
        ("insecure", "maybe", "one of 1, true"),
        ("drain_timeout", "soon", "expected a time"),
        ("drained_status", "256", "at most 255"),
    ],
)
def test_bad_values_name_the_option_the_source_and_the_value(
    name: str, text: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, env={serve_options.env_name(name): text})
    for part in (name.replace("_", "-"), serve_options.env_name(name), repr(text), says):
        assert part in str(caught.value)


def test_a_kubernetes_service_link_is_explained() -> None:
    with pytest.raises(ConfigError, match="enableServiceLinks: false"):
        load({}, env={"REDUCER_PORT": "tcp://10.0.0.1:2222"})


def replica(role: str, address: str) -> dict[str, str]:
    spec = {"cluster": {role: ["other:1", address]}, "task": {"type": role, "index": 1}}
    return {"CLUSTER_SPEC": json.dumps(spec)}


@pytest.mark.parametrize(
    ("address", "host", "port", "insecure"),
    [
        ("training-workerpool2-ab-1:4321", "0.0.0.0", 4321, True),
        ("10.0.0.7", "0.0.0.0", 2222, True),
        ("[fd00::7]:1", "::", 1, True),
        ("localhost:1", "localhost", 1, False),
        ("127.0.0.1:1", "127.0.0.1", 1, False),
        ("[::1]:1", "::1", 1, False),
    ],
)
def test_a_reducers_replica_serves_where_its_cluster_says(
    address: str, host: str, port: int, insecure: bool
) -> None:
    found = load({}, env=replica("workerpool2", address))
    assert (found.config.host, found.config.port) == (host, port)
    assert found.config.insecure == insecure
    assert found.sources["host"] == found.sources["port"] == "CLUSTER_SPEC"
    serve_options.check_protection(found.config)


def test_what_is_named_comes_before_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("port = 5\n", encoding="utf-8")
    env = replica("workerpool2", "r:4321")
    assert load({}, file=str(file), env=env).config.port == 5
    assert load({"port": "6"}, env=env).config.port == 6
    assert load({"host": "127.0.0.1"}, env=env).config.insecure is False
    assert load({"key_file": "/k"}, env=env).config.insecure is False
    assert load({"host": "::1", "port": "1"}, env={"CLUSTER_SPEC": "{"}).config.port == 1
    with pytest.raises(ConfigError, match=r"--key-file .*--insecure"):
        serve_options.check_protection(load({"host": "0.0.0.0"}, env=env).config)
    with pytest.raises(ConfigError, match=r"--key-file .*--insecure"):
        serve_options.check_protection(load({}, env={**env, "REDUCER_INSECURE": "0"}).config)


def test_tensorflows_cluster_does_not_stand_for_insecure() -> None:
    spec = {"cluster": {"ps": ["p:4321"]}, "task": {"type": "ps", "index": 0}}
    found = load({}, env={"TF_CONFIG": json.dumps(spec)})
    assert (found.config.host, found.config.port) == ("0.0.0.0", 4321)
    with pytest.raises(ConfigError, match=r"--key-file .*--insecure"):
        serve_options.check_protection(found.config)


def test_other_replicas_serve_as_anywhere() -> None:
    for role in ("workerpool0", "workerpool3"):
        assert load({}, env=replica(role, "r:4321")).config == Config()


def test_a_malformed_cluster_is_an_error_of_the_configuration() -> None:
    spec = '{"cluster": 7, "task": {"type": "workerpool2"}}'
    with pytest.raises(ConfigError, match="CLUSTER_SPEC: cluster: expected an object, got 7"):
        load({}, env={"CLUSTER_SPEC": spec})


def test_other_variables_with_our_prefix_are_not_ours() -> None:
    assert load({}, env={"REDUCER_ADDRS": "a:1", "REDUCER_RANK": "0"}).config == Config()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("prot = 1", "did you mean 'port'"),
        ("port = [1]", "expected a string, a number, true or false"),
        ("port = ", "configuration file"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=says) as caught:
        load({}, file=str(file), env={})
    assert str(file) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load({}, file=str(tmp_path / "none"), env={})


def test_the_documentation_is_the_defaults(tmp_path: Path) -> None:
    text = CliRunner().invoke(main, ["config", "--show-docs"]).output
    assert set(tomllib.loads(text)) == set(serve_options.options())
    file = tmp_path / "r.toml"
    file.write_text(text, encoding="utf-8")
    found = load({}, file=str(file), env={})
    assert found.config == Config()
    assert set(found.sources.values()) == {f"file {file}"}


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": "0.0.0.0", "insecure": "true"}, True),
        ({"host": "0.0.0.0", "key_file": "/k"}, True),
        ({"key_file": "/k"}, True),
        ({"key_file": "/k", "insecure": "true"}, False),
        ({"host": "0.0.0.0", "tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}, True),
    ],
)
def test_protection(given: dict[str, str], allowed: bool) -> None:
    options = load(given, env={}).config
    if allowed:
        serve_options.check_protection(options)
        return
    with pytest.raises(ConfigError) as caught:
        serve_options.check_protection(options)
    for name in ("--key-file", "REDUCER_KEY_FILE", "--insecure", "REDUCER_INSECURE"):
        assert name in str(caught.value)


TLS = {"tls_cert": "/c", "tls_key": "/k", "tls_ca": "/a"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**TLS, "insecure": "true"}, "--tls-cert (REDUCER_TLS_CERT) and --insecure"),
        ({**TLS, "key_file": "/k"}, "--key-file (REDUCER_KEY_FILE) and --tls-cert"),
        ({"tls_cert": "/c"}, "missing: --tls-key, --tls-ca"),
        ({"tls_ca": "/a", "host": "0.0.0.0", "insecure": "true"}, "missing: --tls-cert, --tls-key"),
    ],
)
def test_tls_is_whole_and_alone(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        serve_options.check_protection(load(given, env={}).config)
    assert says in str(caught.value)


def test_the_mode_follows_from_the_files() -> None:
    assert load({}, env={}).config.mode == "open"
    assert load({"key_file": "/k"}, env={}).config.mode == "psk"
    assert load(TLS, env={}).config.mode == "tls"


@pytest.mark.parametrize(
    ("cores", "lanes"), [(1, 1), (2, 1), (3, 2), (4, 3), (6, 4), (8, 6), (16, 12), (96, 72)]
)
def test_auto_lanes_leave_a_quarter_of_the_cores_to_the_kernel(
    monkeypatch: pytest.MonkeyPatch, cores: int, lanes: int
) -> None:
    monkeypatch.setattr(serve_options, "usable_cores", lambda: cores)
    assert load({"lanes": "auto"}, env={}).config.lane_count == lanes
    assert load({"lanes": "3"}, env={}).config.lane_count == 3


def test_the_usable_cores_are_at_most_the_allowed_cores() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_a_lane_runs_the_code_of_its_parent() -> None:
    first = serve_options.child_environment()["PYTHONPATH"].split(":")[0]
    assert Path(first) == ROOT.parent


def test_a_lane_has_a_secret_that_nobody_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images for reproducible training set PYTHONHASHSEED; peers could then choose bad keys."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert serve_options.child_environment()["PYTHONHASHSEED"] == "random"


def test_a_lane_has_the_defaults_of_the_options() -> None:
    """Regression: `LaneSettings` and the daemon's options had different defaults."""
    of_lane = {field.name: field.default for field in dataclasses.fields(LaneSettings)}
    of_daemon = {**dataclasses.asdict(Config()), "job_budget": Config().job_memory}
    shared = of_lane.keys() & of_daemon.keys() - {"lanes"}
    assert {"credit", "records", "max_total_runs", "max_runs", "max_keys", "stall_after"} <= shared
    assert {name: of_lane[name] for name in shared} == {name: of_daemon[name] for name in shared}
