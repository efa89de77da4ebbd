"""`reducer doctor` names what is wrong with real reducers, and only that."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reducer import __version__, keyfile
from reducer.wire.codes import PROTOCOL_MAJOR, PROTOCOL_MINOR
from reducer.wire.header import PREFACE_SIZE
from reducer_tools.cli import main
from tests.support.certs import Files
from tests.support.cluster import Daemon, environment
from tests.support.impostor import Impostor
from tests.support.ports import free_port
from tests.support.reducers import Reducers
from tests.support.wait import wait_until

QUICK = ("--bandwidth-seconds", "0")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon(lanes=2) as running:
        yield running


@pytest.fixture(scope="module")
def keyed(key_file: str) -> Iterator[Daemon]:
    with Daemon("--key-file", key_file) as running:
        yield running


def doctor(*addresses: str, arguments: tuple[str, ...] = QUICK, **env: str) -> Result:
    """Run the doctor in this process, so that a test notices what it leaves behind."""
    given = ["doctor", "--addresses", ",".join(addresses), *arguments]
    return CliRunner().invoke(main, given, env=env)


def findings(*addresses: str, arguments: tuple[str, ...] = QUICK, **env: str) -> Any:
    result = doctor(*addresses, arguments=(*arguments, "--json"), **env)
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["healthy"] else 1)
    return found


def the_fault(found: Any, code: str) -> str:
    """The text of the only fault."""
    (fault,) = [one for one in found["findings"] if one["level"] == "fault"]
    assert fault["code"] == code, fault
    return str(fault["text"])


def test_where_nothing_is_wrong_nothing_is_said(daemon: Daemon) -> None:
    with Daemon() as other:
        arguments = ("--bandwidth-seconds", "0.1")
        found = findings(daemon.address, other.address, arguments=arguments)
    assert found["healthy"]
    assert "all 2 reducers can be used from this host" in found["verdict"]
    first, second = found["reducers"]
    assert (first["lanes"], second["lanes"]) == (2, 1)
    assert (first["version"], first["kernels"]) == (__version__, "native")
    assert abs(first["clock_ahead"]) < 0.01
    assert all(0 < one["round_trip"] < 1 and one["path_mtu"] >= 1_500 for one in (first, second))
    assert all(one["rate"] > 0 and one["round_seconds"] > 0 for one in (first, second))
    assert found["rate"] > 0
    assert [one for one in found["findings"] if one["code"] != "slow-reducer"] == []
    wait_until(lambda: daemon.lane_total("connections") == 0, 5, "the doctor has left")
    assert all(not lane["core"]["jobs"] for lane in daemon.stats()["lanes"])


def test_the_table_is_aligned(daemon: Daemon) -> None:
    address = f"localhost:{free_port()}"
    text = doctor(daemon.address, address).stdout
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("REDUCER"))
    rows = lines[lines.index(head) + 1 :][:2]
    column = head.index("STATE")
    assert [row[column:].split()[0] for row in rows] == ["ok", "closed-port"]
    end = head.index("LANES") + len("LANES")
    assert [row[:end].split()[-1] for row in rows] == ["2", "-"]
    assert re.search(r"^  open files +[\d,]+ \(at most [\d,]+\)$", text, re.M)
    assert max(map(len, lines)) <= 120


def test_a_closed_port(daemon: Daemon) -> None:
    port = free_port()
    found = findings(f"127.0.0.1:{port}")
    assert found["verdict"].endswith("a running job waits for them and fails")
    text = the_fault(found, "closed-port")
    assert f"127.0.0.1 refuses connections to port {port}" in text
    assert "--host" in text


def test_a_wrong_key(keyed: Daemon, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    keyfile.make(other)
    text = the_fault(findings(keyed.address, arguments=(*QUICK, "--key-file", other)), "wrong-key")
    assert "its key file is another one" in text
    assert keyed.address in text
    text = the_fault(findings(keyed.address), "key-wanted")
    assert "REDUCER_KEY_FILE" in text


def test_the_right_key_is_right(keyed: Daemon, key_file: str, tmp_path: Path) -> None:
    assert findings(keyed.address, arguments=(*QUICK, "--key-file", key_file))["healthy"]
    of_a_job = str(tmp_path / "job")
    keyfile.make_for_job(of_a_job, "resnet", key_file)
    environ = {"REDUCER_KEY_FILE": of_a_job}
    assert findings(keyed.address, arguments=(*QUICK, "--job", "resnet"), **environ)["healthy"]
    the_fault(findings(keyed.address, **environ), "wrong-key")


def test_a_wrong_certificate(certs: Files, authority: Any) -> None:
    stranger = type(authority)(Path(certs.cert).parent / "stranger").issue()
    with Daemon(*certs.flags) as secured:
        assert findings(secured.address, **certs.environment)["healthy"]
        the_fault(findings(secured.address, **stranger.environment), "wrong-certificate")


def test_a_reducer_of_another_protocol() -> None:
    major = PROTOCOL_MAJOR + 1

    def answer(sock: socket.socket, number: int) -> None:
        if sock.recv(PREFACE_SIZE, socket.MSG_WAITALL):
            sock.sendall(b"ORSP" + bytes([major, 3]) + bytes(PREFACE_SIZE - 6))
            sock.recv(1)

    with Impostor(answer) as impostor:
        found = findings(impostor.address)
    text = the_fault(found, "version-skew")
    assert f"{major}.3" in text and f"{PROTOCOL_MAJOR}.{PROTOCOL_MINOR}" in text


def test_half_of_the_reducers_down() -> None:
    with Reducers(4) as reducers:
        for index in (1, 3):
            reducers.kill(index)
        addresses = reducers.addresses
        result = doctor(*addresses)
    assert result.exit_code == 1
    assert (
        f"2 of 4 reducers cannot be used from this host: {addresses[1]} (closed-port), "
        f"{addresses[3]} (closed-port). A job with these reducers cannot start here; a running job "
        "continues with the others" in " ".join(result.stdout.split())
    )
    assert result.stdout.count("FAULT closed-port") == 2


def test_a_reducer_that_does_not_answer() -> None:
    with Reducers(1) as reducers:
        reducers.freeze(0)
        try:
            found = findings(*reducers.addresses, arguments=(*QUICK, "--timeout", "0.5"))
        finally:
            reducers.thaw(0)
    assert "? The port is open: the reducer hangs" in the_fault(found, "no-answer")


def test_what_listens_is_no_reducer(daemon: Daemon) -> None:
    found = findings(f"127.0.0.1:{daemon.metrics_port}", arguments=(*QUICK, "--timeout", "1"))
    assert "answers HTTP" in the_fault(found, "no-reducer")


def test_a_name_that_nobody_knows() -> None:
    assert "cannot be resolved" in the_fault(findings(f"{'x' * 70}:2222"), "unknown-name")


def test_one_reducer_under_two_names(daemon: Daemon) -> None:
    found = findings(daemon.address, f"localhost:{daemon.port}")
    assert f"the same reducer as {daemon.address}" in the_fault(found, "same-reducer")
    assert found["verdict"] == "a job cannot start on this host"


def test_too_few_open_files(daemon: Daemon) -> None:
    limit = f"ulimit -n 64; exec {sys.executable} -m reducer_tools doctor --json {' '.join(QUICK)}"
    done = subprocess.run(
        ["bash", "-c", limit],
        env=environment({"REDUCER_ADDRS": daemon.address}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (warning,) = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "open-files"]
    assert "64 open files are allowed" in warning["text"]


def test_a_key_file_that_others_can_read_is_named(key_file: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(Path(key_file).read_bytes())
    copy.chmod(0o644)
    result = doctor("127.0.0.1:1", arguments=("--key-file", str(copy)))
    assert result.exit_code == 1
    assert "others can read" in result.output
    assert doctor("127.0.0.1:x").exit_code == 2


def test_without_reducers_the_doctor_tries_a_hosted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REDUCER_ADDRS", "CLUSTER_SPEC", "TF_CONFIG", "REDUCER_SERVICE"):
        monkeypatch.delenv(variable, raising=False)
    result = CliRunner().invoke(main, ["doctor"], env={"MASTER_ADDR": "127.0.0.1"})
    assert result.exit_code == 0, result.output
    assert "hosted reducer" in result.stdout
    assert "WARNING no-address: this host: its address toward 127.0.0.1 is 127.0.0.1" in (
        result.stdout
    )
    assert "the workers of a job host them, and one can run" in " ".join(result.stdout.split())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        env = {"MASTER_ADDR": "127.0.0.1", "REDUCER_HOSTED_PORTS": port}
        result = CliRunner().invoke(main, ["doctor", "--json"], env=env)
    assert result.exit_code == 1
    assert f"port {port} on 127.0.0.1 is in use, the last of REDUCER_HOSTED_PORTS" in the_fault(
        json.loads(result.stdout), "hosted-reducer"
    )
