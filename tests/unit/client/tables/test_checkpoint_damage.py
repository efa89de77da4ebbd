"""A damaged checkpoint is named with what is wrong, and the newest good one is offered."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from reducer_client.tables.checkpoints import CheckpointError, inspect, load, save
from reducer_client.tables.checkpoints.image import as_json
from tests.support.folders import folder_in_memory
from tests.support.table_images import contents, image

NAME = "shards-0.safetensors"
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def undamaged() -> Iterator[Path]:
    with folder_in_memory() as folder:
        for step in (100, 200, 300):
            save(folder, step, [image(step)])
        yield folder


@pytest.fixture
def directory(undamaged: Path) -> Iterator[Path]:
    """Checkpoints of the steps 100, 200 and 300."""
    with folder_in_memory() as folder:
        yield shutil.copytree(undamaged, folder, dirs_exist_ok=True)


def refused(directory: Path, error: str, **step: int) -> CheckpointError:
    """Loading fails with the error, and offers step 200, which is good."""
    with pytest.raises(CheckpointError, match=error) as caught:
        load(directory, **step)
    assert str(caught.value).endswith("; the newest good checkpoint is step-200: load(step=200)"), (
        caught.value
    )
    assert caught.value.good_step == 200
    assert contents(load(directory, 200)) == contents([image(200)])
    return caught.value


def forge(folder: Path, change: Callable[[Manifest], Any]) -> None:
    """Change the manifest, and give it the right SHA-256."""
    path = folder / "manifest.json"
    fields = json.loads(path.read_text())
    change(fields)
    del fields["sha256"]
    fields["sha256"] = hashlib.sha256(as_json(fields).encode()).hexdigest()
    path.write_text(json.dumps(fields))


def rewrite(folder: Path, tensors: dict[str, Any]) -> None:
    """Other tensors in the file, and a manifest that has the file's size and SHA-256."""
    save_file(tensors, folder / NAME)
    data = (folder / NAME).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    forge(folder, lambda m: m["files"][0].update(size=len(data), sha256=sha256))


def test_one_bit_of_a_file_is_enough(directory: Path) -> None:
    path = directory / "step-300" / NAME
    data = bytearray(path.read_bytes())
    expected = hashlib.sha256(data).hexdigest()
    data[-5] ^= 16
    path.write_bytes(data)
    found = hashlib.sha256(data).hexdigest()
    error = refused(
        directory, f"step-300 in .* is damaged: {NAME} has SHA-256 {found}, expected {expected}"
    )
    assert (error.reason, error.step) == ("damaged", 300)
    assert [row.damage for row in inspect(directory)] == ["", "", ""]
    assert f"has SHA-256 {found}" in inspect(directory, verify=True)[2].damage


def test_a_file_that_is_cut_short_or_missing(directory: Path) -> None:
    path = directory / "step-300" / NAME
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(directory, f"{NAME} has {len(data) - 1} bytes, expected {len(data)}")
    assert "bytes, expected" in inspect(directory)[2].damage
    path.unlink()
    refused(directory, f"{NAME} is missing")
    path.mkdir()
    refused(directory, f"{NAME} has .* bytes, expected")


@pytest.mark.parametrize("position", range(0, 900, 37))
def test_no_byte_of_a_manifest_can_change_unseen(directory: Path, position: int) -> None:
    path = directory / "step-300" / "manifest.json"
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    if json_of(data) == json_of(path.read_bytes()):
        return  # a space became another sign that means nothing
    path.write_bytes(data)
    refused(directory, r"step-300 in .* is damaged: manifest\.json")


def json_of(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_a_manifest_that_is_cut_short_or_missing(directory: Path) -> None:
    path = directory / "step-300" / "manifest.json"
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:size])
        refused(directory, "manifest.json is no JSON")
    path.unlink()
    refused(directory, "manifest.json is missing")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[]", "expected a mapping"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"9" * 5_000, "is no JSON"),
        (b'{"format": 2}', "has format 2, which is newer than this program: update it"),
        (b'{"format": 0}', "has format 0, which never existed"),
        (b'{"format": "1"}', "format must be int, got '1'"),
        (b'{"format": true}', "format must be int, got True"),
        (b'{"format": 1}', "lacks the field 'sha256'"),
        (b'{"format": 1, "sha256": "0", "x": NaN}', "was changed"),
    ],
    ids=range(10),
)
def test_a_manifest_of_something_else(directory: Path, text: bytes, error: str) -> None:
    (directory / "step-300" / "manifest.json").write_bytes(text)
    refused(directory, error)


def _table(**fields: Any) -> Callable[[Manifest], Any]:
    return lambda manifest: manifest["tables"][0].update(fields)


def _file(**fields: Any) -> Callable[[Manifest], Any]:
    return lambda manifest: manifest["files"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_file(name="../step-200/" + NAME), "names a file '../step-200/shards-0.safetensors'"),
        (_file(name="/etc/passwd"), "names a file '/etc/passwd', expected a name such as"),
        (_file(name=NAME + "\n"), "names a file"),
        (_file(size="9"), "size must be int, got '9'"),
        (_file(sha256=None), "sha256 must be str, got None"),
        (lambda m: m["files"].append(m["files"][0]), "names a file twice"),
        (lambda m: m["files"].append(3), "expected a mapping, got 3"),
        (lambda m: m["tables"].append(m["tables"][0]), "two tables have the name 'net'"),
        (lambda m: m.update(step=200), "is of step 200, expected 300"),
        (lambda m: m.update(job=3), "job must be a text or null, got 3"),
        (lambda m: m.update(saved="now"), "saved must be int or float, got 'now'"),
        (lambda m: m.update(saved=10**400), "int too large to convert to float"),
        (lambda m: m.pop("tables"), "lacks the field 'tables'"),
        (_table(name=""), "the name of a table must be a text"),
        (_table(dtype="float16"), "table 'net' is 'float16', expected float32"),
        (_table(tensors=[["w", [-1]]]), "a size of 'w' must be an integer from 0 on"),
        (_table(tensors=[3]), "expected pairs of a tensor's name and shape"),
        (_table(tensors=[["w", 3]]), "expected pairs of a tensor's name and shape"),
        (_table(tensors=[["w", [1 << 40]]]), "describes .* bytes of tensors; the files have"),
        (_table(tensors=[["w", [1 << 62, 1 << 62]]]), "describes .* bytes of tensors"),
        (_table(tensors=[["w", [1]]]), "has the tensor 'net/.*', which no table has"),
        (_table(optimizer={"optimizer": "lion"}), "optimizer must be one of"),
        (_table(optimizer={"optimizer": "none"}), "has the tensor .*, which no table has"),
        (_table(mode=[]), r"mode must be dict, got \[\]"),
    ],
    ids=range(24),
)
def test_a_forged_manifest_is_refused(
    directory: Path, change: Callable[[Manifest], Any], error: str
) -> None:
    forge(directory / "step-300", change)
    refused(directory, error)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)  # fmt: skip


def parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each mapping or list within the value, with each of its keys or positions."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from parts(value[key])


@settings(max_examples=100)
@given(st.integers(0, 38), _ANY)
def test_whatever_a_manifest_has_it_is_loaded_or_refused(
    undamaged: Path, position: int, other: Any
) -> None:
    with folder_in_memory() as folder:
        shutil.copytree(undamaged / "step-300", folder / "step-300")

        def change(fields: Manifest) -> None:
            within, key = list(parts(fields))[position]
            within[key] = other

        forge(folder / "step-300", change)
        try:
            tables = load(folder, 300)
        except CheckpointError as error:
            assert error.reason == "damaged"  # noqa: PT017  # it need not be raised
        else:
            assert [table.count for table in tables] == [19]


@settings(max_examples=100)
@given(st.integers(0, 400), st.integers(1, 255))
def test_whatever_a_file_has_it_is_loaded_or_refused(
    undamaged: Path, position: int, change: int
) -> None:
    with folder_in_memory() as folder:
        shutil.copytree(undamaged / "step-300", folder / "step-300")
        path = folder / "step-300" / NAME
        data = bytearray(path.read_bytes())
        data[position] ^= change
        path.write_bytes(data)
        forge(folder / "step-300", _file(sha256=hashlib.sha256(data).hexdigest()))
        try:
            tables = load(folder, 300)
        except CheckpointError as error:
            assert error.reason == "damaged"  # noqa: PT017  # it need not be raised
        else:
            assert [table.count for table in tables] == [19]


def test_files_with_other_tensors_are_refused(directory: Path) -> None:
    folder = directory / "step-300"
    tensors = load_file(folder / NAME)
    rewrite(folder, {**tensors, "extra": np.zeros(1, np.float32)})
    refused(directory, f"{NAME} has the tensor 'extra', which no table has")
    rewrite(folder, {**tensors, "ü": np.zeros(1, np.float32)})
    refused(directory, "has the tensor 'ü'")
    rewrite(folder, {**tensors, "net/scale": np.zeros(1, np.float32)})
    refused(directory, r"'net/scale' is F32 of shape \(1,\), expected F32 of shape \(\)")
    rewrite(folder, {**tensors, "net/scale": np.zeros((), np.float64)})
    refused(directory, "'net/scale' is F64 of shape")
    rewrite(folder, {**tensors, "net/scale": np.zeros((), np.int32)})
    refused(directory, "'net/scale' is I32 of shape")


def test_a_missing_tensor_is_named(directory: Path) -> None:
    folder = directory / "step-300"
    tensors = load_file(folder / NAME)
    del tensors["net/scale"]
    rewrite(folder, tensors)
    refused(directory, "no file has the tensor 'net/scale'")


def test_a_file_that_is_no_safetensors_file(directory: Path) -> None:
    data = b"\xff" * 1000
    (directory / "step-300" / NAME).write_bytes(data)
    forge(
        directory / "step-300",
        _file(size=len(data), sha256=hashlib.sha256(data).hexdigest()),
    )
    refused(directory, f"{NAME} cannot be read: ")


def test_latest_may_be_missing_or_wrong(directory: Path) -> None:
    latest = directory / "latest"
    for text in ("", "step-", "step-1.5", "step-007", "../step-100", "x" * 5_000, "step-100\n\n"):
        latest.write_text(text)
        with pytest.raises(
            CheckpointError, match=r"the file latest has .*expected a name"
        ) as caught:
            load(directory)
        assert caught.value.good_step == 300
        with pytest.raises(CheckpointError, match="the file latest has"):
            inspect(directory)
    latest.write_text("step-100\n")  # somebody wants to go back
    assert contents(load(directory)) == contents([image(100)])
    latest.unlink()
    assert contents(load(directory)) == contents([image(300)])
    latest.mkdir()
    with pytest.raises(CheckpointError, match="the file latest cannot be read: Is a directory"):
        load(directory)


def test_a_checkpoint_that_is_missing(directory: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"step-250 is not in .*; the newest good .* step-300"
    ):
        load(directory, 250)
    os.rename(directory / "step-300", directory / "away")
    error = refused(directory, "step-300 is not in .*, which the file latest names")
    assert error.reason == "missing"


def test_all_are_damaged(directory: Path) -> None:
    for step in (100, 200, 300):
        path = directory / f"step-{step}" / NAME
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match=r"; no other checkpoint is good$") as caught:
        load(directory)
    assert caught.value.good_step is None


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        inspect(tmp_path / "none")
    assert inspect(tmp_path) == []
