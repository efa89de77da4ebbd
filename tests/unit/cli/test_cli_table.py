"""`reducer table inspect` shows checkpoints, and tells good ones from damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reducer_client.tables.checkpoints import load, save
from reducer_tools.cli import main
from tests.support.table_images import image


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    large = image(2, "emb", (("rows", (100, 10)),))
    for step in (90, 100):
        save(tmp_path, step, [image(1), large], job="digits")
    return tmp_path


def inspect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["table", "inspect", *map(str, arguments)])


def test_a_line_for_each_checkpoint(directory: Path) -> None:
    found = inspect(directory)
    assert found.exit_code == 0, found.output
    head, *lines = (line.split() for line in found.output.splitlines())
    assert head == ["STEP", "TABLES", "PARAMETERS", "SIZE", "AGE", "STATE"]
    for words, step, state in zip(
        lines, ("90", "100"), (["good"], ["good,", "latest"]), strict=True
    ):
        # 1,019 parameters with the two slots of Adam are 12.2 kB, and the header takes 0.9 kB.
        assert words[:4] == [step, "net,", "emb", "1,019"] and words[5] == "kB"
        assert 12.2 < float(words[4]) < 14 and words[7] == "s" and words[8:] == state


def test_damage_is_named_and_is_the_exit_status(directory: Path) -> None:
    path = directory / "step-90" / "shards-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert inspect(directory).exit_code == 0  # the size is right
    found = inspect(directory, "--verify")
    assert found.exit_code == 1
    _, first, second, damage = found.output.splitlines()
    assert first.split() == ["90", "-", "-", "-", "-", "damaged"]
    assert second.endswith("  good, latest")
    assert damage.startswith("step 90: shards-0.safetensors has SHA-256 ")


def test_json_has_the_rows(directory: Path) -> None:
    (directory / "step-100" / "manifest.json").unlink()
    found = inspect(directory, "--json")
    assert found.exit_code == 1
    first, second = json.loads(found.output)
    assert first["tables"] == ["net", "emb"] and first["job"] == "digits"
    assert first["parameters"] == sum(table.count for table in load(directory, 90))
    assert (second["step"], second["latest"]) == (100, True)
    assert second["damage"] == "manifest.json is missing"


def test_many_tables_are_counted(tmp_path: Path) -> None:
    save(tmp_path, 1, [image(1, f"embedding {number}") for number in range(9)])
    assert "  9 tables  " in inspect(tmp_path).output


def test_an_empty_and_a_missing_directory(tmp_path: Path) -> None:
    assert inspect(tmp_path).output == f"no checkpoint in {tmp_path}\n"
    found = inspect(tmp_path / "none")
    assert found.exit_code == 1 and isinstance(found.exception, SystemExit)
    assert "cannot be read: No such file or directory" in found.output
