"""The staging on a real device: slices, streams, memory, and calls that are refused.

`tests/unit/torch/test_staging_schedules.py` has the same laws on a simulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")

import torch  # only where it is installed
import torch.distributed as dist

from reducer_client import Group
from reducer_client.parts import Parts
from reducer_client.torch.staging.cuda import CudaDevice
from reducer_client.torch.staging.reduction import Reduction
from reducer_client.torch.staging.staging import Staging
from reducer_client.torch.staging.transfer import SLICE_BYTES
from reducer_client.torch.tensors.host import summable
from reducer_client.torch.tensors.packing import Packing
from tests.support.process_group import process_group
from tests.support.ranks import join, run_ranks
from tests.support.reducers import Reducers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
]

DEVICE = "cuda"
# Elements of float32 in three slices, of which the last is short; two of a 16-bit dtype.
COUNT = (2 * SLICE_BYTES + SLICE_BYTES // 2) // 4 + 3
WAIT = 60.0  # seconds
CYCLES = 100_000_000  # of the device's clock: about 50 ms


def _enter(rank: int) -> torch.device:
    """The device of a rank, as its current device."""
    torch.set_num_threads(1)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return torch.device(DEVICE, torch.cuda.current_device())


def _staging() -> Staging:
    return Staging(CudaDevice(torch.device(DEVICE, torch.cuda.current_device())))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().view(torch.uint8)


# --- the bits ---


def _values(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers and denormals of every dtype; what rounds up to Inf in float16."""
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))
    values[:1000] *= 1e-5
    values[1000:2000] *= 1e-40
    values[COUNT - 1000 :] *= 1e4
    return values.to(dtype)


def _every_dtype(rank: int, world: int, addresses: list[str], job: str) -> None:
    _enter(rank)
    wires: list[Any] = [None, "bfloat16", "float16", "int8"]
    cases = [(torch.float32, wire) for wire in wires]
    cases += [(dtype, None) for dtype in (torch.float64, torch.bfloat16, torch.float16)]
    with join(rank, world, addresses, job) as group:
        staging = _staging()
        for number, (dtype, wire) in enumerate(cases):
            here = _values(rank, dtype)
            there = here.to(DEVICE)
            for tensor, way in ((here, None), (there, staging)):
                reduction = Reduction(group, f"bits{number}", wire, "mean")
                reduction.start(tensor, tensor, way).wait(WAIT)
            assert torch.equal(_bits(here), _bits(there)), (dtype, wire)


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_a_bucket_of_several_slices_has_the_bits_of_the_host(
    running: Reducers, allocator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", allocator)  # read by the ranks
    run_ranks(2, _every_dtype, running.addresses, "dtypes")


def _odd_tensors(rank: int, world: int, addresses: list[str], job: str) -> None:
    """Strided, out of place, and a single element."""
    _enter(rank)
    with join(rank, world, addresses, job) as group:
        staging = _staging()
        rows = _values(rank, torch.float32)[: 1000 * 2000].view(1000, 2000)
        for wire in (None, "bfloat16"):
            for name, make in {
                "strided": lambda x: x.t(),
                "part": lambda x: x[:, 500:1500],
                "one": lambda x: x[0, :1],
            }.items():
                here, there = make(rows.clone()), make(rows.to(DEVICE))
                for tensor, way in ((here.contiguous(), None), (there, staging)):
                    target = torch.empty_like(tensor)
                    apart = Reduction(group, f"{name}/{wire}/apart", wire, "mean")
                    apart.start(tensor, target, way).wait(WAIT)
                    within = Reduction(group, f"{name}/{wire}", wire, "mean")
                    within.start(tensor, tensor, way).wait(WAIT)
                    assert torch.equal(target, tensor), name
                    if way is None:
                        here = tensor
                assert torch.equal(_bits(here), _bits(there.contiguous())), (name, wire)


def test_strided_tensors_and_other_targets_have_the_bits_of_the_host(running: Reducers) -> None:
    run_ranks(2, _odd_tensors, running.addresses, "odd")


# --- the order of copies, and memory ---


class SlowDevice(CudaDevice):
    """A device on which a stream works long before each copy."""

    slow: Any = None

    def queue(self, stream: Any, work: Callable[[], None]) -> None:
        if stream is self.slow:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(CYCLES)
        super().queue(stream, work)


class Noted:
    """A submitted all-reduce in place that notes what happens, in order."""

    def __init__(self, group: Group, key: str) -> None:
        self.events: list[str] = []
        self.ended = Event()
        self._group, self._key = group, key
        self._work: Any = None

    def submit(self, host: Any, _: Any, *, on_done: Any, parts: Parts | None = None) -> Any:
        array, dtype = summable(host)
        self.events.append("submit")
        if parts is not None and parts.on_part is not None:
            parts = replace(parts, on_part=self._telling(parts.on_part))
        self._work = self._group.all_reduce(
            array, key=self._key, out=array, dtype=dtype, parts=parts, on_done=on_done
        )
        return self

    def fill(self, elements: int) -> None:
        self.events.append("fill")
        self._work.fill(elements)

    def done(self, _: object) -> None:
        self.ended.set()

    def _telling(self, on_part: Callable[[int], None]) -> Callable[[int], None]:
        def tell(elements: int) -> None:
            self.events.append("part")
            on_part(elements)

        return tell


def _slow_out(rank: int, world: int, addresses: list[str], job: str) -> list[str]:
    device = SlowDevice(_enter(rank))
    staging = Staging(device)
    tensor = torch.full((8 * SLICE_BYTES // 4,), rank + 1.0, device=DEVICE)
    with join(rank, world, addresses, job) as group:
        noted = Noted(group, "slow")
        packing = Packing([tensor])
        device.slow = staging._lanes.out
        transfer = staging.start(packing, packing, noted.submit, noted.done, sliced=True)
        transfer.wait(WAIT)
        assert bool((tensor == sum(range(1, world + 1))).all())
    return noted.events


def test_results_come_back_while_later_slices_are_copied_out(running: Reducers) -> None:
    """Each of eight slices takes 50 ms to the host; a round over loopback takes a few."""
    for events in run_ranks(2, _slow_out, running.addresses, "slow"):
        assert events[0] == "submit" and events.count("fill") == 7
        last_fill = len(events) - 1 - events[::-1].index("fill")
        assert "part" in events[:last_fill], events


def _freed(rank: int, world: int, addresses: list[str], job: str) -> None:
    device = SlowDevice(_enter(rank))
    staging = Staging(device)
    later: list[torch.Tensor] = []
    # Made before, so that only `later` can take the memory that is returned.
    tensors = [torch.full((COUNT,), 1.0, device=DEVICE) for _ in range(8)]
    with join(rank, world, addresses, job) as group:
        device.slow = staging._lanes.back
        while tensors:
            noted = Noted(group, f"freed{len(tensors)}")
            packing = Packing([tensors.pop()])
            staging.start(packing, packing, noted.submit, noted.done, sliced=True)
            assert noted.ended.wait(WAIT)
            del packing, noted  # the copy back has not begun: its stream sleeps
            later.append(torch.full((COUNT,), 7.0, device=DEVICE))
        torch.cuda.synchronize()
        assert len(later) == 8 and all(bool((tensor == 7.0).all()) for tensor in later)


def test_memory_that_a_copy_back_writes_is_not_used_again_before(running: Reducers) -> None:
    run_ranks(2, _freed, running.addresses, "freed")


def _inference(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    _enter(rank)
    with process_group(rank, world, addresses, store, job=job):
        with torch.inference_mode():
            made = torch.full((COUNT,), rank + 1.0, device=DEVICE)
            dist.all_reduce(made)
            assert bool((made == 3.0).all())
        dist.all_reduce(made)  # outside, where nothing else may write to such a tensor
        plain = torch.full((COUNT,), rank + 1.0, device=DEVICE)
        with torch.inference_mode():
            dist.all_reduce(plain)
        plain += 1  # the pinned buffers and the tensor are no inference tensors
        assert bool((made == 6.0).all()) and bool((plain == 4.0).all())


def test_tensors_of_inference_mode(running: Reducers, tmp_path: Path) -> None:
    run_ranks(2, _inference, running.addresses, "inference", str(tmp_path / "store"))


# --- what is refused, and more than one device ---


def _captured(rank: int, world: int, addresses: list[str], job: str, store: str) -> None:
    _enter(rank)
    with process_group(rank, world, addresses, store, job=job):
        tensor = torch.full((COUNT,), rank + 1.0, device=DEVICE)
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = tensor * 2
            with pytest.raises(RuntimeError, match=r"while a CUDA graph is captured.*the replay"):
                dist.all_reduce(tensor)
        graph.replay()
        dist.all_reduce(doubled)  # as the text advises
        assert bool((tensor == 3.0).all()) and bool((doubled == 12.0).all())


def test_a_call_while_a_graph_is_captured_is_refused(running: Reducers, tmp_path: Path) -> None:
    run_ranks(2, _captured, running.addresses, "graph", str(tmp_path / "store"))


def _two_devices(rank: int, world: int, addresses: list[str], job: str, store: str) -> bool:
    if torch.cuda.device_count() < 2:
        return False
    with process_group(rank, world, addresses, store, job=job):
        tensors = [
            torch.full((COUNT,), 10.0 * number + rank, device=torch.device(DEVICE, number % 2))
            for number in range(6)
        ]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for number, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            with torch.cuda.device(tensor.device):
                work.wait()
                assert bool((tensor + 0 == 20.0 * number + 1).all())
    return True


def test_two_devices_in_one_process(running: Reducers, tmp_path: Path) -> None:
    if not all(run_ranks(2, _two_devices, running.addresses, "two", str(tmp_path / "store"))):
        pytest.skip("one CUDA device: this test needs two")
