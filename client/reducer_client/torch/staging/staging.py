"""The staging of one device: starts the transfers of a program's calls, in their order."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from reducer_client.torch.staging.cuda import CudaDevice
from reducer_client.torch.staging.device import Device
from reducer_client.torch.staging.transfer import Lanes, OnDone, Submit, Transfer, Way
from reducer_client.torch.tensors.packing import Packing

_PLAIN = Way()


class Staging:
    """Copies tensors of one device to the host and back.

    If the host waits for a result, only the stager thread waits for the device: for the copies to
    the host, after which it submits the collective. A thread of the client starts the copies back.
    Consumers of the result wait for these on the device only.

    Args:
        stager: executor with one thread, which submits collectives in the order of ``start``.
    """

    def __init__(self, device: Device, stager: ThreadPoolExecutor | None = None) -> None:
        self._lanes = Lanes(device)
        self._can_order = device.can_order()
        self._stager = stager or ThreadPoolExecutor(1, thread_name_prefix="reducer-stager")
        if stager is None:
            weakref.finalize(self, self._stager.shutdown, wait=False)

    def on_back(self) -> AbstractContextManager[Any]:
        """Context in which the stream of the copies back is the current stream."""
        return self._lanes.device.on(self._lanes.back)

    def start(
        self,
        source: Packing | None,
        target: Packing,
        submit: Submit,
        on_done: OnDone,
        way: Way = _PLAIN,
    ) -> Transfer:
        """Copy ``source`` to the host, submit the collective, and copy the result to ``target``.

        The arguments are those of ``Transfer``. The host waits for the result even with
        ``way.by_stream`` if there is no source, the result cannot be NaN, or the device lacks what
        that takes.

        Raises RuntimeError while a graph is captured; with ``by_stream`` also the errors of
        ``submit``.
        """
        self._lanes.device.check_start()
        is_able = self._can_order and source is not None and target.dtype.is_floating_point
        if way.by_stream and not is_able:
            way = replace(way, by_stream=False)
        transfer = Transfer(self._lanes, source, target, on_done, way)
        transfer.begin()
        if transfer.by_stream:
            transfer.submit(submit)
        else:
            self._stager.submit(transfer.stage, submit)
        return transfer


class Stagings:
    """The stagings of a program's devices, each made at its first use."""

    def __init__(self, stager: ThreadPoolExecutor | None = None) -> None:
        self._stager = stager
        self._of: dict[torch.device, Staging] = {}

    def of(self, device: torch.device) -> Staging | None:
        """The staging of a CUDA device; None for the CPU."""
        if device.type != "cuda":
            return None
        if device not in self._of:
            self._of[device] = Staging(CudaDevice(device), self._stager)
        return self._of[device]
