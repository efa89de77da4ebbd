"""Saves from time to time: what the program can see of them."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reducer_client.tables import supervisor as module
from reducer_client.tables.checkpoints import SavePolicy, load
from reducer_client.tables.supervisor import Supervisor
from tests.support.table_images import image
from tests.support.wait import AT_ONCE, wait_until


class Tables:
    """One table, whose image has its version."""

    def __init__(self) -> None:
        self.version = 0

    def __call__(self) -> list[Any]:
        return [SimpleNamespace(version=self.version)]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    monkeypatch.setattr(
        module, "image_of", lambda table: image(state={"versions": [table.version]})
    )
    monkeypatch.setattr(module, "_LOOK", 0.01)
    return Tables()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_age_of_the_last_checkpoint(
    tmp_path: Path, tables: Tables, clock: SimpleNamespace
) -> None:
    supervisor = Supervisor(tmp_path, SavePolicy(every_seconds=60), "job", tables)
    assert (supervisor.saved, supervisor.age) == (None, None)
    tables.version = 7
    assert supervisor.save() == tmp_path / "step-7"
    clock.now += 30
    assert (supervisor.saved, supervisor.age) == (7, 30.0)
    tables.version = 9
    supervisor.save()
    assert (supervisor.saved, supervisor.age) == (9, 0.0)


def test_a_checkpoint_is_as_old_as_the_begin_of_its_save(
    tmp_path: Path, tables: Tables, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = module.save

    def slow(*args: Any, **options: Any) -> Path:
        clock.now += 12
        return save(*args, **options)

    monkeypatch.setattr(module, "save", slow)
    supervisor = Supervisor(tmp_path, SavePolicy(every_seconds=60), "job", tables)
    supervisor.save()
    assert supervisor.age == 12.0


def test_a_save_that_fails_tells_how_old_the_last_checkpoint_is(
    tmp_path: Path, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "here"
    supervisor = Supervisor(folder, SavePolicy(every_steps=1), "job", tables)
    with caplog.at_level(logging.INFO, "reducer_client.tables"):
        supervisor.start()
        try:
            tables.version = 1
            wait_until(lambda: "there is no checkpoint yet" in caplog.text, AT_ONCE, "an error")
            folder.mkdir()
            tables.version = 2
            wait_until(lambda: supervisor.saved == 2, AT_ONCE, "a checkpoint")
            folder.rename(tmp_path / "gone")
            tables.version = 3
            wait_until(lambda: "of step 2, is 0 s old" in caplog.text, AT_ONCE, "an error")
        finally:
            supervisor.stop()
    assert "step-2 saved in 0." in caplog.text
    (loaded,) = load(tmp_path / "gone")
    assert loaded.state["versions"] == [2]
