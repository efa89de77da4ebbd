"""Each setting has one name, as argument, variable, field of torch's Options, and in the plugin."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import reducer_client
from reducer_client.config import Given, JobSettings, find_value, resolve, resolve_key, resolve_tls
from reducer_client.config.given import settings
from reducer_client.config.hosting import resolve_hosting

ROOT = Path(__file__).parents[3]
TABLE = dict(settings())
PLACE = {"REDUCER_ADDRS": "a,b", "REDUCER_JOB": "j", "REDUCER_RANK": "0", "REDUCER_WORLD_SIZE": "2"}
# For every setting: the variable's text, and the value as an argument. Neither is the default.
VALUES: dict[str, tuple[str, Any]] = {
    "addresses": ("c:1,d", ("c:1", "d:2222")),
    "job": ("other", "other"),
    "rank": ("1", 1),
    "world_size": ("7", 7),
    "run_id": ("run", "run"),
    "connect_timeout": ("7.5", 7.5),
    "step_timeout": ("8", 8.0),
    "silence": ("2", 2.0),
    "worker_silence": ("9", 9.0),
    "reducer_wait": ("3", 3.0),
    "on_overflow": ("error", "error"),
    "on_nonfinite": ("error", "error"),
    "chunk_table": ("0:64KiB,1MiB:256KiB", ((0, 65536), (1 << 20, 262144))),
    "weights": ("3,1", (3, 1)),
    "min_reducers": ("2", 2),
    "transport": ("tcp", "tcp"),
    "congestion": ("reno", "reno"),
    "source": ("lo", "lo"),
    "digest_every": ("5", 5),
    "io_threads": ("4", 4),
    "timeline": ("traces", "traces"),
    "hosted": ("1", True),
    "cuda_wait": ("stream", "stream"),
}
ELSEWHERE = {"hosted", "key", "key_file", "tls_cert", "tls_key", "tls_ca"}


def test_every_setting_is_an_argument_of_connect() -> None:
    arguments = inspect.signature(reducer_client.connect).parameters
    assert set(arguments) == set(TABLE)
    assert {argument.default for argument in arguments.values()} == {None}


def test_every_setting_of_a_job_is_a_field_of_torchs_options() -> None:
    from reducer_client.torch import Options

    own = {"wire_dtype", "hierarchy"}
    assert {each.name for each in fields(Options)} == {f.name for f in fields(JobSettings)} | own
    assert "secret" not in repr(Options(key=b"secret" * 6))


def test_the_name_of_a_variable_follows_from_the_name_of_the_setting() -> None:
    other = {"addresses": "REDUCER_ADDRS", "reducer_wait": "REDUCER_WAIT", "key": ""}
    for name, setting in TABLE.items():
        assert setting.variable == other.get(name, f"REDUCER_{name.upper()}")


@pytest.mark.parametrize("name", [name for name in TABLE if name not in ELSEWHERE])
def test_a_setting_works_as_an_argument_and_as_a_variable(name: str) -> None:
    text, value = VALUES[name]
    default = resolve(environ=PLACE)
    by_argument = resolve(Given(**{name: value}), PLACE)
    by_variable = resolve(environ=PLACE | {TABLE[name].variable: text})
    assert getattr(by_argument, name) == getattr(by_variable, name) == value
    assert getattr(default, name) != value
    # The argument takes precedence over a variable.
    both = resolve(Given(**{name: value}), PLACE | {TABLE[name].variable: text[:-1] + "9"})
    assert getattr(both, name) == value


def test_the_other_settings_work_as_arguments_and_as_variables(tmp_path: Path) -> None:
    assert resolve_hosting(JobSettings(hosted=True), {}).wanted is True
    assert resolve_hosting(environ={"REDUCER_HOSTED": "1"}).wanted is True
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    by_file = resolve_key("j", key_file=str(key), environ={})
    assert by_file == resolve_key("j", environ={"REDUCER_KEY_FILE": str(key)})
    assert by_file and resolve_key("j", b"k" * 32, environ={})
    paths = {name: str(key) for name in ("tls_cert", "tls_key", "tls_ca")}
    by_variable = resolve_tls(environ={f"REDUCER_{n.upper()}": p for n, p in paths.items()})
    assert resolve_tls(**paths, environ={}) == by_variable == (str(key),) * 3


@pytest.mark.parametrize(
    ("name", "bad", "text"),
    [
        ("on_nonfinite", "raise", "REDUCER_ON_NONFINITE='raise': expected one of propagate, error"),
        ("chunk_table", "64KiB", "REDUCER_CHUNK_TABLE='64KiB': expected rows such as 0:64KiB,1MiB"),
        ("chunk_table", "0:100", "REDUCER_CHUNK_TABLE='0:100': chunks of 100 bytes; expected a"),
        ("weights", "3;1", "REDUCER_WEIGHTS='3;1': expected numbers such as 3,3,1"),
        ("step_timeout", "0", "REDUCER_STEP_TIMEOUT='0': expected seconds above 0"),
        ("hosted", "maybe", "REDUCER_HOSTED='maybe': expected auto, 1 or 0"),
    ],
)
def test_a_bad_variable_is_named_with_what_was_expected(name: str, bad: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        find_value(name, environ={TABLE[name].variable: bad})


def test_the_plugin_takes_the_variables_that_the_table_says() -> None:
    source = (ROOT / "nccl_plugin" / "settings.cc").read_text()
    parameters = set(re.findall(r'^      \{"(REDUCER_\w+)",', source, re.M))
    shared = {each.variable for each in TABLE.values() if each.plugin} - {"REDUCER_ADDRS"}
    assert shared <= parameters
    all_ = {each.variable for each in TABLE.values()}
    own = {"CHUNK_BYTES", "MIN_BYTES", "WIRE_DTYPE", "NSOCKS", "NET_THREADS", "PIECE_BYTES"}
    assert parameters - shared == {f"REDUCER_{name}" for name in own} - all_
