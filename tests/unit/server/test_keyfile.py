"""Key files: allowed permissions, their contents, and that no output shows the key."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from reducer import keyfile
from reducer.cli import main
from reducer.keyfile import KeyFileError
from reducer.wire.handshake import job_key
from reducer_client import config

KEY = bytes(range(32))
JOB_KEY = job_key(KEY, "j")
TEXT = base64.urlsafe_b64encode(KEY)
ROOT = os.geteuid() == 0


def written(path: Path, text: bytes = TEXT, mode: int = 0o600) -> str:
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


def test_keygen_prints_the_path_and_not_the_key(tmp_path: Path) -> None:
    path = tmp_path / "job.key"
    before = os.umask(0)
    try:
        ended = CliRunner().invoke(main, ["keygen", str(path)])
    finally:
        os.umask(before)
    assert (ended.exit_code, ended.output) == (0, f"{path}\n")
    assert path.stat().st_mode & 0o7777 == 0o600
    assert len(keyfile.read(str(path))) == 32
    assert path.read_text().strip() not in ended.output


def test_keygen_never_overwrites(tmp_path: Path) -> None:
    path = written(tmp_path / "key")
    ended = CliRunner().invoke(main, ["keygen", path])
    assert ended.exit_code == 1
    assert "not overwritten" in ended.output and path in ended.output
    assert keyfile.read(path) == KEY
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nothing")
    with pytest.raises(KeyFileError, match="not overwritten"):
        keyfile.make(str(dangling))
    assert not (tmp_path / "nothing").exists()


def test_keygen_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        keyfile.make(str(tmp_path / "no" / "key"))


def test_two_keys_differ(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        keyfile.make(path)
    assert keyfile.read(paths[0]) != keyfile.read(paths[1])


@pytest.mark.parametrize(
    "text", [TEXT, TEXT + b"\n", TEXT + b"\r\n", TEXT.rstrip(b"="), b"\n" + TEXT + b"\n\n"]
)
def test_forms_of_the_text(tmp_path: Path, text: bytes) -> None:
    assert keyfile.read(written(tmp_path / "key", text)) == KEY


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"+/+/" * 11, "base64url"),
        (b"secret phrase with spaces in it", "base64url"),
        (TEXT + b"\n" + TEXT, "base64url"),
        (b"A" * 45, "base64url"),
        (b"=" * 44, "base64url"),
        (b"\xff" * 44, "base64url"),
        (base64.urlsafe_b64encode(bytes(15)), "15 bytes, expected 16"),
        (base64.urlsafe_b64encode(bytes(1025)), "expected 16 to 1024|base64url"),
        (b"A" * 100_000, "base64url"),
    ],
)
def test_a_text_that_is_no_key_is_refused_and_not_shown(
    tmp_path: Path, text: bytes, says: str
) -> None:
    path = written(tmp_path / "key", text)
    with pytest.raises(KeyFileError, match=says) as caught:
        keyfile.read(path)
    assert path in str(caught.value)
    if len(text) > 20:
        assert text[:12].decode("latin-1") not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o606, 0o620, 0o660, 0o601, 0o777, 0o666])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "key", mode=mode)
    with pytest.raises(KeyFileError, match=f"{mode:04o}") as caught:
        keyfile.read(path)
    assert f"chmod 600 {path}" in str(caught.value)


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_owners(tmp_path: Path) -> None:
    """Kubernetes mounts a secret as root's file behind links, readable by the pod's group."""
    path = written(tmp_path / "key", mode=0o440)
    assert keyfile.read(path) == KEY
    link = tmp_path / "mounted"
    link.symlink_to("key")
    assert keyfile.read(str(link)) == KEY
    os.chown(path, 12345, 12345)
    os.chmod(path, 0o600)
    with pytest.raises(KeyFileError, match="belongs to user 12345"):
        keyfile.read(path)


@pytest.mark.skipif(ROOT, reason="a file of root's is another case")
def test_an_own_file_needs_no_group(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="0640"):
        keyfile.read(written(tmp_path / "key", mode=0o640))


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="regular file"):
        keyfile.read(str(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(KeyFileError, match="regular file"):
        keyfile.read(str(pipe))
    with pytest.raises(KeyFileError, match="reducer keygen"):
        keyfile.read(str(tmp_path / "nothing"))


def test_the_key_of_a_job(tmp_path: Path) -> None:
    master, other = (
        written(tmp_path / name, text) for name, text in (("m", TEXT), ("o", b"x" * 44))
    )
    path = str(tmp_path / "job")
    ended = CliRunner().invoke(main, ["keygen", "--job", "job-ü", "--from", master, path])
    assert (ended.exit_code, ended.output) == (0, f"{path}\n")
    assert Path(path).stat().st_mode & 0o7777 == 0o600
    expected = job_key(KEY, "job-ü")
    assert keyfile.read_for_job(path, "job-ü") == keyfile.read_for_job(master, "job-ü") == expected
    # A job's key is used for any job name; for another job the lane's proof will not match.
    assert keyfile.read_for_job(path, "other") == expected
    assert keyfile.read_for_job(other, "job-ü") != expected
    with pytest.raises(KeyFileError, match="key of one job"):
        keyfile.read(path)
    with pytest.raises(KeyFileError, match="key of one job"):
        keyfile.make_for_job(str(tmp_path / "again"), "x", path)


@pytest.mark.parametrize("text", [keyfile.text_of(KEY), keyfile.text_for_job(JOB_KEY)])
def test_a_file_in_memory_is_read_by_its_path(text: bytes) -> None:
    fd = keyfile.in_memory(text)
    try:
        path = f"/proc/{os.getpid()}/fd/{fd}"
        assert keyfile.read_for_job(path, "j") == JOB_KEY
        assert os.stat(path).st_mode & 0o7777 == 0o600
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("text", [b"job-key:", b"job-key:====", b"job-key:" + TEXT[:20]])
def test_a_job_key_that_is_none(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(KeyFileError):
        keyfile.read_for_job(written(tmp_path / "key", text), "job")


@pytest.mark.parametrize("words", [["--job", "a"], ["--from", "k"], ["--job", "", "--from", "k"]])
def test_half_a_question(words: list[str], tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["keygen", *words, str(tmp_path / "new")])
    assert ended.exit_code == 2
    assert not (tmp_path / "new").exists()


def test_where_a_client_takes_its_key_from(tmp_path: Path) -> None:
    path = written(tmp_path / "key")
    env = {"REDUCER_KEY_FILE": path}
    assert config.resolve_key("j", environ={}) == b""
    assert config.resolve_key("j", environ=env) == JOB_KEY
    assert (
        config.resolve_key("j", key_file=path, environ={"REDUCER_KEY_FILE": "/nothing"}) == JOB_KEY
    )
    assert config.resolve_key("j", key_file="", environ=env) == b""
    assert config.resolve_key("j", key=b"k" * 16, environ=env) == job_key(b"k" * 16, "j")
    with pytest.raises(ValueError, match="got both"):
        config.resolve_key("j", key=KEY, key_file=path, environ={})
    with pytest.raises(ValueError, match="got 15"):
        config.resolve_key("j", key=b"k" * 15, environ={})
    with pytest.raises(TypeError, match="got str"):
        config.resolve_key("j", key="k" * 16, environ={})  # type: ignore[arg-type]
