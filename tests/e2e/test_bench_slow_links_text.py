"""`bench.slow_links`: the emulated link keeps its rate and delay, and both commands run briefly."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import uvloop

pytest.importorskip("torch")

import torch  # only where it is installed

from bench.slow_links.beside_torchft import ring_seconds
from bench.slow_links.corpus import Corpus
from bench.slow_links.link import Link, Links, calibrate
from bench.slow_links.model import Accelerated
from bench.slow_links.results import LINK, Curve, Pace, Point, format_table, join
from tests.support.cluster import ROOT, environment

SLOW = Link("20mbit", 0.040)
HEADERS = 0.02  # of all bytes: frames, barriers and the answers of metrics
PARAMETERS = 470_784


@pytest.fixture(scope="module", autouse=True)
def _libuv() -> None:
    """libuv keeps a pipe of its own once there has been a loop."""
    uvloop.new_event_loop().close()


def test_a_link_keeps_its_rate_and_its_delay() -> None:
    reached = calibrate(SLOW, workers=2, seconds=0.4)
    assert 0.040 <= reached.round_trip < 0.4, reached
    for rate in reached.rates:  # less on a busy machine; two workers do not share a link
        assert 0.3 < rate / SLOW.bytes_per_second < 1.05, reached


def test_connections_of_a_worker_share_its_link() -> None:
    size = 200_000
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        reducers = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
        with Links(reducers, 1, SLOW) as links:
            began = time.perf_counter()
            near = [_connect(address) for address in links.addresses[0]]
            far = [each.accept()[0] for each in (first, second)]
            for sock in near:
                threading.Thread(target=_send, args=(sock, size)).start()
            came = [_read_all(sock) for sock in far]
            took = time.perf_counter() - began
            for sock in (*near, *far):
                sock.close()
            assert links.lines[0][0].carried == 2 * size
    assert came == [bytes(range(250)) * (size // 250)] * 2
    assert took >= SLOW.seconds(2 * size), took


def test_a_reset_passes_through_a_link() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Links([f"127.0.0.1:{server.getsockname()[1]}"], 1, SLOW) as links,
    ):
        near = _connect(links.addresses[0][0])
        far, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()
        near.settimeout(5)
        with near, pytest.raises(ConnectionResetError):
            near.recv(1)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _send(sock: socket.socket, size: int) -> None:
    sock.sendall(bytes(range(250)) * (size // 250))
    sock.shutdown(socket.SHUT_WR)


def _read_all(sock: socket.socket) -> bytes:
    data = b""
    while piece := sock.recv(1 << 16):
        data += piece
    return data


def _bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.slow_links.{name}", *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_each_method_trains_and_its_bytes_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = "data parallel,bfloat16,DiLoCo"
    brief = ["--workers", "2", "--steps", "50", "--evaluate", "25", "--exchanges", "3"]
    files = ["--json", str(tmp_path / "json"), "--plot", str(tmp_path / "a.png")]
    _bench("text", "--methods", names, *brief, *files)
    whole, half, local = join(_lines(tmp_path / "json"))
    payload = 2 * 2 * 4 * PARAMETERS  # two workers, up and down, float32
    for curve, expected in ((whole, 50 * payload), (half, 25 * payload), (local, payload)):
        assert curve.points[-1].bytes == pytest.approx(expected, rel=HEADERS), curve.method
        assert max(point.loss for point in curve.points) < 4, curve  # it begins at 5.6
        assert [point.step for point in curve.points] == [25, 50]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_workers_compute_more_with_local_steps(tmp_path: Path) -> None:
    names = "data parallel,Streaming DiLoCo"
    brief = ["--workers", "2", "--steps", "20", "--methods", names]
    _bench("busy", *brief, "--json", str(tmp_path / "json"))
    shares = {
        line["method"]: line["computing"] / line["wall"]
        for line in _lines(tmp_path / "json")
        if line["what"] == "share"
    }
    assert shares["data parallel"] < 0.25
    assert shares["Streaming DiLoCo"] > 2 * shares["data parallel"]


def test_gradients_come_when_the_accelerator_has_made_them() -> None:
    model = Accelerated(layers=4, size=3, seconds=0.12)
    came: list[tuple[int, float]] = []
    began = time.perf_counter()
    for number, parameter in enumerate(model.all):
        parameter.register_post_accumulate_grad_hook(
            lambda _, number=number: came.append((number, time.perf_counter() - began))
        )
    model().backward()
    assert [number for number, _ in came] == [3, 2, 1, 0]
    for (_, at), least in zip(came, (0.06, 0.08, 0.10, 0.12), strict=True):
        assert at >= least
    assert all(torch.equal(p.grad, torch.full((3,), 1e-3)) for p in model.all if p.grad is not None)


def test_the_text_is_the_same_each_time_and_is_not_the_validation_text() -> None:
    corpus, again = Corpus(16), Corpus(16)
    batch = corpus.batch(3, step=7, rank=1)
    assert batch.shape == (3, 17) and int(batch.max()) < 256
    assert torch.equal(again.batch(3, 7, 1), batch)
    assert not torch.equal(corpus.batch(3, 8, 1), batch)
    assert not torch.equal(corpus.batch(3, 7, 0), batch)
    assert torch.equal(again.validation(5), corpus.validation(5))
    assert corpus.sha256 == again.sha256 and corpus.size > 1_000_000


def test_an_exchange_costs_what_computing_leaves_of_it() -> None:
    assert Pace(compute=0.1, exchange=0.4).seconds(10) == pytest.approx(5.0)
    local = Pace(compute=0.1, exchange=0.4, every=10)
    assert local.seconds(20) == pytest.approx(2.8)
    streaming = Pace(compute=0.1, exchange=0.4, every=10, fragments=2, delay=3)
    assert streaming.seconds(20) == pytest.approx(2.4)
    hidden = Pace(compute=0.1, exchange=0.4, every=10, fragments=2, delay=4)
    assert hidden.seconds(20) == pytest.approx(2.0)


def test_a_ring_takes_its_stages() -> None:
    stage = LINK.seconds(PARAMETERS * 4 // 4)
    assert ring_seconds(4) == pytest.approx(6 * stage)
    assert ring_seconds(1) == 0


def test_a_table_says_where_a_method_reaches_the_worst_loss() -> None:
    whole = Curve(
        "a", Pace(0.1, 0.9), [Point(60, 3.0, 10**6, 10**6), Point(120, 2.0, 10**7, 10**7)]
    )
    other = Curve("b", Pace(0.1, 0.0), [Point(60, 4.0, 10**6, 0), Point(120, 3.0, 10**6, 10**6)])
    _, *rows = format_table([whole, other]).splitlines()
    assert " ".join(rows[0].split()) == "a 2.0000 20.0 1.0x 2.00 900.0 ms 2.0 1.00"
    assert " ".join(rows[1].split()) == "b 3.0000 2.0 10.0x 0.20 0.0 ms 2.0 0.20"


def test_a_curve_has_the_last_pace_of_its_method() -> None:
    point = Point(60, 3.0, 1, 2)
    curve = {"what": "curve", "points": [point._asdict()]}
    paces: list[dict[str, Any]] = [
        {"what": "pace", "method": method, "pace": asdict(Pace(0.1, exchange))}
        for method, exchange in (("a", 0.5), ("a", 0.9), ("b", 0.3))
    ]
    curves: list[dict[str, Any]] = [{**curve, "method": "c"}, {**curve, "method": "a"}]
    assert join([{"what": "context"}, *paces, *curves]) == [Curve("a", Pace(0.1, 0.9), [point])]
