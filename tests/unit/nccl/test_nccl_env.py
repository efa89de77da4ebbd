"""`reducer nccl env`: what it finds, and what it prints for each version of NCCL."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from reducer_tools import cli
from reducer_tools.nccl import config, installed, variables
from reducer_tools.nccl.installed import NotFoundError, find_nccl, find_plugin
from reducer_tools.nccl.versions import Version, from_code, library_names, parse_version, tables
from tests.support.cluster import ROOT, environment, run_cli
from tests.support.libraries import nccl_of_version

ADDRESSES = "reducer-0:2222,reducer-1:2222"
WHEEL = Path("nvidia", "nccl", "lib", "libnccl.so.2")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """The path of an installed plugin; an empty file, since nothing here loads it."""
    path = tmp_path / "plugin" / installed.PLUGIN
    path.parent.mkdir()
    path.touch()
    return path


def _env(plugin: Path, *arguments: str) -> dict[str, str]:
    """The assignments that `reducer nccl env` prints."""
    done = run_cli("nccl", "env", "--library", str(plugin), *arguments)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    reasons = {line.index("  # ") for line in lines if len(line.partition("  # ")[0]) <= 60}
    assert len(reasons) == 1, f"not aligned:\n{done.stdout}"
    return dict(line.partition("  # ")[0].strip().partition("=")[::2] for line in lines)


# --- what is installed --------------------------------------------------------------------------


def test_the_wheel_of_this_python_is_found_without_torch(tmp_path: Path, plugin: Path) -> None:
    wheel = nccl_of_version(tmp_path / "site" / WHEEL, 22705)
    other = nccl_of_version(tmp_path / "other" / "libnccl.so.2", 22105)
    env = {
        "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}:{ROOT / 'client'}",
        "LD_LIBRARY_PATH": str(other.parent),
    }
    done = run_cli("nccl", "env", "--library", str(plugin), env=env)
    assert done.returncode == 0, done.stderr
    first, *others = [line for line in done.stdout.splitlines() if line.startswith("# NCCL 2")]
    assert first == f"# NCCL 2.27.5: {wheel}"
    assert f"# NCCL 2.21.5, too: {other}" in others  # torch for CUDA adds one more


def test_without_nccl_it_says_where_it_looked_and_what_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(installed, "_cached", lambda name: [])
    with pytest.raises(NotFoundError, match=r"nvidia-nccl-cu.*LD_LIBRARY_PATH \(/none\).*ldconfig"):
        find_nccl({"LD_LIBRARY_PATH": "/none"})
    (tmp_path / "libnccl.so.2").write_text("no library")
    with pytest.raises(NotFoundError, match=r"cannot be loaded: .*--version"):
        find_nccl({"LD_LIBRARY_PATH": str(tmp_path)})


def test_the_plugin_is_found_on_the_path_or_named(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_plugin({"LD_LIBRARY_PATH": f"/none:{plugin.parent}"}) == plugin
    assert find_plugin({}, plugin.parent) == find_plugin({}, plugin) == plugin
    with pytest.raises(NotFoundError, match=r"expected libnccl-net-reducer\.so or the folder"):
        find_plugin({}, tmp_path)
    monkeypatch.setattr(installed, "_cached", lambda name: [])
    monkeypatch.setattr(installed, "_PREFIXES", (tmp_path,))
    with pytest.raises(NotFoundError, match=r"LD_LIBRARY_PATH \(unset\).*--library"):
        find_plugin({})
    monkeypatch.setattr(installed, "_OURS", plugin.parent)  # as in a wheel
    assert find_plugin({}) == plugin


# --- what is printed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "table", "algorithm", "notes"),
    [
        ("2.18.6", 6, "CollNetChain", ("no tuner", "not a path")),
        ("2.19.3", 7, "CollNetChain", ("not a path",)),
        ("2.20.5", 8, "CollNetChain", ("not a path",)),
        ("2.21.5", 8, "CollNetChain", ()),
        ("2.24.3", 9, "allreduce:collnetchain", ()),
        ("2.27.5", 10, "allreduce:collnetchain", ()),
        ("2.28", 11, "allreduce:collnetchain", ()),
        ("2.32.3", 12, "allreduce:collnetchain", ()),
        ("23203", 12, "allreduce:collnetchain", ()),
        ("2.99", 12, "allreduce:collnetchain", ()),
    ],
)
def test_each_version_has_its_table_and_its_form(
    version: str, table: int, algorithm: str, notes: tuple[str, ...]
) -> None:
    parsed = parse_version(version)
    assert tables(parsed)[0] == table
    said = " ".join(variables.notes(parsed, force=False))
    assert f"v{table}" in said
    assert [text in said for text in ("no tuner", "not a path")] == [
        text in notes for text in ("no tuner", "not a path")
    ]
    given = variables.to_set(parsed, Path("/p/x.so"), ADDRESSES, True, {})
    assert next(v.value for v in given if v.name == "NCCL_ALGO") == algorithm
    named = [v.value for v in given if v.name == "NCCL_TUNER_PLUGIN"]
    assert named == (["x.so"] if (2, 19) <= parsed < (2, 21) else [])


def test_the_lines_are_aligned_and_complete(plugin: Path) -> None:
    assert _env(plugin, "--version", "2.27.5", "--addresses", ADDRESSES) == {
        "NCCL_NET_PLUGIN": "reducer",
        "NCCL_COLLNET_ENABLE": "1",
        "LD_LIBRARY_PATH": str(plugin.parent),
        "REDUCER_ADDRS": ADDRESSES,
        "NCCL_DEBUG": "INFO",
    }
    assert _env(plugin, "--version", "2.20.5", "--force")["NCCL_ALGO"] == "CollNetChain"
    assert "REDUCER_ADDRS" not in _env(plugin, "--version", "2.20.5")
    shell = run_cli("nccl", "env", "--library", str(plugin), "--version", "2.27.5", "--shell")
    assert "REDUCER_ADDRS" not in shell.stdout and "REDUCER_ADDRS" in shell.stderr


def test_a_shell_takes_the_lines_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a folder; with $signs"
    folder.mkdir()
    (folder / installed.PLUGIN).touch()
    script = 'eval "$("$@")" && exec "$0" -c "import json, os; print(json.dumps(dict(os.environ)))"'
    command = [
        sys.executable,
        "-m",
        "reducer_tools",
        "nccl",
        "env",
        "--shell",
        "--version",
        "2.27.5",
    ]
    command += ["--library", str(folder), "--addresses", ADDRESSES, "--force"]
    done = subprocess.run(
        ["bash", "-ec", script, sys.executable, *command],
        env=environment({"LD_LIBRARY_PATH": f"/before:{folder}"}),
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert seen["LD_LIBRARY_PATH"] == f"{folder}:/before"
    assert seen["REDUCER_ADDRS"] == ADDRESSES
    assert seen["NCCL_ALGO"] == "allreduce:collnetchain"
    assert (seen["NCCL_NET_PLUGIN"], seen["NCCL_COLLNET_ENABLE"]) == ("reducer", "1")


def test_addresses_that_the_plugin_finds_by_itself_are_not_asked_for() -> None:
    def names(around: dict[str, str], given: str = "") -> dict[str, str]:
        found = variables.to_set(Version(2, 27), Path("/p/x.so"), given, False, around)
        return {v.name: v.value for v in found}

    assert names({})["REDUCER_ADDRS"] == ""
    assert names({"REDUCER_ADDRS": "a:1"})["REDUCER_ADDRS"] == "a:1"
    spec = {"CLUSTER_SPEC": '{"cluster": {"workerpool2": ["r:1"]}}'}
    assert "REDUCER_ADDRS" not in names(spec)
    assert names(spec, "b:2")["REDUCER_ADDRS"] == "b:2"
    assert not names({"CLUSTER_SPEC": "{}"})["REDUCER_ADDRS"]


def test_what_cannot_be_served_is_an_error(plugin: Path) -> None:
    for version, text in (("2.14.3", "expected 2.18 or later"), ("two", "expected one such as")):
        done = run_cli("nccl", "env", "--library", str(plugin), "--version", version)
        assert done.returncode != 0 and text in done.stderr


def test_nccls_file_sets_what_a_job_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".nccl.conf"
    file.write_text("NCCL_ALGO=Ring\n=nameless\n#NCCL_NET=IB\nLD_LIBRARY_PATH=/late\nno line\n")
    monkeypatch.setattr(os, "environ", {"HOME": "/nowhere"})
    monkeypatch.setattr(config, "_SYSTEM_FILE", tmp_path / "none")
    found = SimpleNamespace(pw_dir=str(tmp_path))
    monkeypatch.setattr(pwd, "getpwuid", lambda user: found)
    assert config.read() == {"HOME": "/nowhere", "NCCL_ALGO": "Ring"}


def test_a_user_without_an_entry_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(config, "_SYSTEM_FILE", Path("/nonexistent"))
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert config.read(A="1") == {"A": "1"}


# --- versions -----------------------------------------------------------------------------------


def test_versions_are_read_in_every_spelling() -> None:
    assert parse_version(" 2.27.5+cuda12.9 ") == from_code(22705) == Version(2, 27, 5)
    assert from_code(2708) == Version(2, 7, 8)
    with pytest.raises(ValueError, match=r"expected one such as 2\.27\.5"):
        parse_version("newest")


@pytest.mark.parametrize(
    ("plugin", "version", "names"),
    [
        (None, "2.18.3", ["libnccl-net.so"]),
        ("reducer", "2.20.5", ["libnccl-net-reducer.so"]),
        ("/a/b.so", "2.20.5", ["libnccl-net-/a/b.so.so"]),
        ("reducer", "2.21.5", ["reducer", "libnccl-net-reducer.so"]),
        ("", "2.21.5", ["libnccl-net.so"]),
        (None, "2.27.5", ["libnccl-net.so"]),
        ("", "2.27.5", []),
        ("none", "2.27.5", ["none", "libnccl-net-none.so"]),
        ("None", "2.28.3", []),
        ("/a/b.so", "2.27.5", ["/a/b.so"]),
        ("libnccl-net-x.so", "2.27.5", ["libnccl-net-x.so"]),
        ("a,reducer", "2.30.7", ["a", "libnccl-net-a.so", "reducer", "libnccl-net-reducer.so"]),
    ],
)
def test_the_loader_is_asked_for_the_names_of_the_version(
    plugin: str | None, version: str, names: list[str]
) -> None:
    assert library_names(plugin, parse_version(version)) == names


def test_check_refuses_what_is_no_address_before_it_starts_anything() -> None:
    result = CliRunner().invoke(cli.main, ["nccl", "check", "--addresses", "good:1,bad:port"])
    assert result.exit_code == 2
    assert "'bad:port'" in result.output
