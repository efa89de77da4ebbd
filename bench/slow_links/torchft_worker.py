"""A worker of `bench.slow_links.beside_torchft`, as a worker of `bench.slow_links.text` prints.

It trains with torchft's DiLoCo over gloo, set up as torchft's README says. The bytes are counted on
the loopback device, which carries nothing else: one worker sends each byte, another receives it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torchft
import torchft.local_sgd
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

from bench.slow_links.corpus import Corpus
from bench.slow_links.model import CONTEXT, Transformer
from bench.slow_links.worker import (
    Case,
    digest,
    draw,
    make_optimizer,
    set_rate,
    tell,
    train,
    validate,
)

_HOST = "127.0.0.1"


def main() -> None:
    case: Case = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    logging.getLogger("torchft").setLevel(logging.CRITICAL)
    meeting = FileStore(case["store"], case["workers"])
    torch.manual_seed(case["seed"])
    net, corpus = Transformer(), Corpus(CONTEXT)
    inner = make_optimizer(net)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with (
        _lighthouse(case, meeting) as lighthouse,
        _manager(case, lighthouse) as manager,
        torchft.local_sgd.DiLoCo(
            manager, [net], inner, outer, sync_every=case["every"], use_bucketization=True
        ),
    ):
        before = _carried()
        for step in range(1, case["steps"] + 1):
            set_rate(inner, step / case["steps"])
            train(net, inner, draw(corpus, case, step))
            if step % case["evaluate"] == 0 or step == case["steps"]:
                _meet(case, meeting, f"evaluate {step}")
                if case["rank"] == 0:
                    gone = _carried() - before
                    tell(
                        {
                            "step": step,
                            "loss": validate(net, corpus),
                            "received": gone,
                            "sent": gone,
                        }
                    )
                _meet(case, meeting, f"go on from {step}")
        assert manager.current_step() == case["steps"] // case["every"], "an exchange has failed"
        tell({"digest": digest(net)})
        _meet(case, meeting, "end")


@contextmanager
def _lighthouse(case: Case, meeting: FileStore) -> Iterator[str]:
    from torchft.coordination import LighthouseServer

    if case["rank"] > 0:
        yield meeting.get("lighthouse").decode()
        return
    server = LighthouseServer(bind=f"{_HOST}:0", min_replicas=case["workers"])
    meeting.set("lighthouse", server.address())
    try:
        yield server.address()
    finally:
        server.shutdown()


@contextmanager
def _manager(case: Case, lighthouse: str) -> Iterator[Any]:
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(), min_replica_size=case["workers"], use_async_quorum=False,
        load_state_dict=lambda state: None, state_dict=dict,
        rank=0, world_size=1, store_addr=_HOST, store_port=store.port,
        lighthouse_addr=lighthouse, replica_id=f"worker_{case['rank']}", hostname=_HOST,
    )  # fmt: skip
    try:
        yield manager
    finally:
        manager.shutdown()


def _meet(case: Case, meeting: FileStore, name: str) -> None:
    """Wait for all workers, without a byte over the loopback."""
    meeting.set(f"{name}/{case['rank']}", "")
    meeting.wait([f"{name}/{rank}" for rank in range(case["workers"])])


def _carried() -> int:
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    raise RuntimeError("/proc/net/dev: expected a line for lo")


if __name__ == "__main__":
    main()
