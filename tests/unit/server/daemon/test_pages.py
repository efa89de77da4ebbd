"""Pages are made outside the loop of the main process, which answers probes meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from reducer.server import serve_options
from reducer.server.daemon import app, metrics, status_board, status_page
from reducer.server.daemon.admin import json_answer
from reducer.server.daemon.status_board import StatusBoard
from reducer.server.pipe.snapshot import LaneReport
from tests.support.simlane import SimLane
from tests.unit.server.daemon.test_metrics import lane_part


class Lanes:
    """Lanes that answer at once."""

    handles: tuple[()] = ()

    def down(self) -> list[int]:
        return []

    async def ping(self) -> None:
        """All lanes are alive."""

    async def snapshots(self) -> list[LaneReport]:
        return [lane_part(SimLane())]


def a_server() -> app.Server:
    server: Any = app.Server(serve_options.Config(), b"")
    server._lanes = Lanes()
    server._acceptor = SimpleNamespace(refused={}, passed=0)
    server._admin = SimpleNamespace(dropped={})
    server._board = StatusBoard("127.0.0.1:2222", "127.0.0.1", server._snapshot)
    found: app.Server = server
    return found


@pytest.mark.parametrize(
    ("page", "where", "name"),
    [
        ("/metrics", metrics, "render"),
        ("/api/stats", app, "json_answer"),
        ("/api/status", status_page, "numbers"),
        ("/api/status", status_board, "json_answer"),
    ],
)
def test_the_loop_goes_on_while_a_page_is_made(
    page: str, where: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: 255 groups of 60 ranks delayed probes and accepts by half a second."""
    make, answered = getattr(where, name), threading.Event()

    def make_later(*args: Any) -> Any:
        assert answered.wait(5), f"{name} blocks the loop"
        return make(*args)

    async def run() -> None:
        server = a_server()
        asked = asyncio.create_task(server._pages()[page]())
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await server._health_page()).status == 200
        answered.set()
        assert (await asked).status == 200

    monkeypatch.setattr(where, name, make_later)
    asyncio.run(run())


@pytest.mark.parametrize(
    "found",
    [{}, [], None, {0: 1, "é\"\n": [1.5, (2, "x")]}, {"a": [{"b": {"c": [[[{"d": [{}, []]}]]]}}]}],
)  # fmt: skip
def test_json_in_parts_is_that_of_one_piece(found: object) -> None:
    assert json_answer(found).body == json.dumps(found).encode() + b"\n"
