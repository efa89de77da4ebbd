"""The registry's file: what was written is there again, and nothing else is believed."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from reducer.registry.records import Document
from reducer.server.registry.file import RegistryFile, RegistryFileError, check

DOCUMENTS = {
    ("job", "view"): Document(3, b"\x00\xff" * 500, (b"t" * 16, b"u" * 16)),
    ("jöb", "ü"): Document(1, b""),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry")


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 600 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path: str) -> bytes:
    """A file with DOCUMENTS; returns its incarnation."""
    file = RegistryFile(path)
    file.write(7, DOCUMENTS.items())
    file.close()
    return file.contents.incarnation


def test_a_new_file_is_empty_and_has_an_incarnation(path: str) -> None:
    file = RegistryFile(path)
    assert (file.contents.floor, file.contents.documents) == (0, {})
    assert len(file.contents.incarnation) == 16
    file.close()
    again = RegistryFile(path)
    assert again.contents == file.contents
    again.close()
    os.unlink(path)
    other = RegistryFile(path)
    assert other.contents.incarnation != file.contents.incarnation
    other.close()
    assert os.stat(path).st_mode & 0o077 == 0


def test_what_was_written_is_there_again(path: str) -> None:
    incarnation = write(path)
    file = RegistryFile(path)
    file.close()
    assert file.contents.incarnation == incarnation
    assert (file.contents.floor, file.contents.documents) == (7, DOCUMENTS)
    assert sorted(os.listdir(os.path.dirname(path))) == ["registry", "registry.lock"]


def test_a_link_stays_a_link(path: str, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    write(str(link))
    assert link.is_symlink() and Path(path).stat().st_size > 1_000


@pytest.mark.parametrize("part", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused(path: str, part: float) -> None:
    write(path)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: int(len(data) * part)])
    before = Path(path).read_bytes()
    with pytest.raises(RegistryFileError, match=r"cut short|no file of a registry") as caught:
        check(path)
    assert path in str(caught.value) and "move the file away" in str(caught.value)
    assert Path(path).read_bytes() == before


def test_each_changed_byte_is_found(path: str) -> None:
    write(path)
    data = Path(path).read_bytes()
    for at in range(0, len(data), 7):
        Path(path).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RegistryFileError):
            RegistryFile(path)
    Path(path).write_bytes(data + b"x")
    with pytest.raises(RegistryFileError):
        RegistryFile(path)


def test_a_foreign_file_is_refused_and_stays(path: str) -> None:
    Path(path).write_text("[settings]\n")
    with pytest.raises(RegistryFileError, match=r"is no file of a registry.*\[settings"):
        check(path)
    assert Path(path).read_text() == "[settings]\n"


def test_a_folder_that_is_missing_or_in_the_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryFileError, match="No such file or directory"):
        check(str(tmp_path / "missing" / "registry"))
    with pytest.raises(RegistryFileError, match="Is a directory"):
        check(str(tmp_path))


def test_one_reducer_at_a_time(path: str) -> None:
    file = RegistryFile(path)
    with pytest.raises(RegistryFileError, match="another reducer has it open"):
        RegistryFile(path, lock_seconds=0.0)
    file.close()
    check(path)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_the_old_documents(path: str) -> None:
    file = RegistryFile(path)
    small = {("job", "view"): Document(1, b"small")}
    file.write(0, small.items())
    with pytest.raises(OSError, match="File too large"):
        file.write(0, DOCUMENTS.items())
    assert sorted(os.listdir(os.path.dirname(path))) == ["registry", "registry.lock"]
    file.close()
    again = RegistryFile(path)
    assert again.contents.documents == small
    again.write(0, {("job", "view"): Document(2, b"next")}.items())
    again.close()
