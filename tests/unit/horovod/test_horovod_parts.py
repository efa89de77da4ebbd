"""Parts of the Horovod layer that need no group: settings, scaling, gathering, hosts, stalls."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from reducer_client.horovod import config
from reducer_client.horovod.errors import DuplicateNameError, HorovodInternalError
from reducer_client.horovod.execution import split_rows
from reducer_client.horovod.gathering import ROUND_COST, pads
from reducer_client.horovod.handles import GroupHandle, MappedHandle, OperationHandle
from reducer_client.horovod.scaling import check_scalable, scale_into
from reducer_client.horovod.stalls import StallCheck
from reducer_client.horovod.timeline import Timeline
from reducer_client.horovod.topology import arrange
from tests.support.cluster import environment


def test_settings_are_horovods() -> None:
    found = config.resolve({})
    assert (found.fusion_threshold, found.cycle_time, found.stall_check) == (128 << 20, 0.001, 60)
    assert (found.timeline, found.stall_shutdown, found.mark_cycles) == ("", 0, False)
    found = config.resolve(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "3.5",
            "HOROVOD_TIMELINE": "DYNAMIC",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        }
    )
    assert (found.fusion_threshold, found.cycle_time, found.stall_check) == (0, 0.0035, 0)
    assert (found.timeline, found.mark_cycles) == ("", True)
    for bad in ("x", "-1", "inf", "nan"):
        with pytest.raises(ValueError, match=f"HOROVOD_FUSION_THRESHOLD='{bad}'"):
            config.resolve({"HOROVOD_FUSION_THRESHOLD": bad})


def test_who_this_is() -> None:
    alone = config.resolve_membership({})
    assert (alone.rank, alone.size, alone.local_rank, alone.reducers) == (0, 1, None, False)
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "REDUCER_ADDRS": "a:1"}
    found = config.resolve_membership(torchrun)
    assert (found.rank, found.size, found.local_rank, found.reducers) == (3, 4, 1, True)
    for bad, text in (({"HOROVOD_RANK": "0"}, "SIZE"), ({"HOROVOD_SIZE": "2"}, "set HOROVOD_RANK")):
        with pytest.raises(ValueError, match=text):
            config.resolve_membership(bad)


def test_scaling_rounds_as_the_dtype_does() -> None:
    factor = 0.3141592653589793
    values = np.array([-100, -1, 0, 7, 99], np.int64)
    scale_into(values, values, factor, "int64")
    assert values.tolist() == [-31, 0, 0, 2, 31]  # truncated toward zero
    bits = np.arange(1 << 16, dtype=np.uint16)
    scaled = np.empty_like(bits)
    scale_into(scaled, bits, factor, "bfloat16")
    with np.errstate(invalid="ignore"):
        wide = bits.view(ml_dtypes.bfloat16).astype(np.float32) * np.float32(factor)
        expected = wide.astype(ml_dtypes.bfloat16).view(np.uint16)
    numbers = ~np.isnan(wide)
    assert (scaled[numbers] == expected[numbers]).all()
    assert np.isnan(scaled[~numbers].view(ml_dtypes.bfloat16).astype(np.float32)).all()
    for dtype in ("float8_e5m2", "bool"):
        with pytest.raises(TypeError, match=dtype):
            check_scalable(dtype)


def test_rows_of_a_reducescatter() -> None:
    assert split_rows(11, 4) == [3, 3, 3, 2]
    assert split_rows(2, 4) == [1, 1, 0, 0]


def test_gathering_pads_while_that_is_cheaper() -> None:
    assert pads([100, 100, 100, 100])
    assert pads([100, 0, 100])  # two rounds cost more than 100 bytes
    assert not pads([10 * ROUND_COST, 0, 0, 0])
    assert pads([10 * ROUND_COST] * 4)


def test_ranks_of_hosts() -> None:
    hosts = [b"a", b"b", b"a", b"b", b"b"]
    found = [arrange(rank, hosts, [-1] * 5) for rank in range(5)]
    assert [(t.local_rank, t.local_size) for t in found] == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert [(t.cross_rank, t.cross_size) for t in found] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
    assert not any(t.homogeneous for t in found)
    given = arrange(1, [b"a", b"a"], [1, 0])
    assert (given.local_rank, given.local_size, given.homogeneous) == (0, 2, True)


def test_a_stall_is_told_once_and_ended_in_time(caplog: pytest.LogCaptureFixture) -> None:
    settings = config.resolve(
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "60", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "100"}
    )
    stalls = StallCheck(settings)
    waiting = [("allreduce.a", 10.0, [1, 2]), ("allreduce.b", 20.0, [2])]
    due = [(name, since) for name, since, _ in waiting]
    assert stalls.next_check(due) == 70
    with caplog.at_level(logging.WARNING, "reducer_client.horovod"):
        stalls.check(70.0, waiting)
        assert stalls.next_check(due) == 80
        stalls.check(79.0, waiting)
        stalls.check(80.0, waiting)
    assert [re.sub("^.*s: ", "", line) for line in caplog.messages] == [
        "missing ranks 1, 2: allreduce.a",
        "missing ranks 2: allreduce.b",
    ]
    assert stalls.next_check(due) == 110
    with pytest.raises(HorovodInternalError, match=r"missing ranks 1, 2: allreduce\.a") as raised:
        stalls.check(110.0, waiting)
    assert raised.value.reason == "stalled"
    again = ("allreduce.a", 119.0, [1])  # the next step's tensor of that name
    assert stalls.next_check([again[:2]]) == 179
    with caplog.at_level(logging.WARNING, "reducer_client.horovod"):
        stalls.check(179.0, [again])
    assert len(caplog.messages) == 3
    never = StallCheck(config.resolve({"HOROVOD_STALL_CHECK_DISABLE": "1"}))
    assert never.next_check(due) == float("inf")


def test_handles() -> None:
    hurried = []
    handles = [OperationHandle(name, lambda: hurried.append(1)) for name in "ab"]
    group = GroupHandle(handles)
    doubled = MappedHandle(group, lambda values: [2 * value for value in values])
    handles[0].finish(1)
    assert not group.done and not doubled.done
    handles[1].finish(2)
    assert doubled.done and doubled.wait() is doubled.wait() and doubled.wait() == [2, 4]
    handles[1].fail(HorovodInternalError("late"))
    assert handles[1].wait() == 2
    assert not hurried
    assert issubclass(DuplicateNameError, ValueError)


def test_a_group_is_done_when_all_of_it_are() -> None:
    handles = [OperationHandle(name, lambda: None) for name in "abc"]
    handles[0].fail(HorovodInternalError("first"))
    handles[2].fail(HorovodInternalError("second"))
    late = threading.Timer(0.2, handles[1].finish, [1])
    late.start()
    with pytest.raises(HorovodInternalError, match="first"):
        GroupHandle(handles).wait()
    assert handles[1].done
    late.join()


def test_a_full_disk_ends_the_timeline_alone(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline()
    for stops_early in (True, False):
        timeline.start("/dev/full")
        for number in range(10 if stops_early else 1000):  # more than the file's buffer
            timeline.enter([f"allreduce.{number}"], "QUEUE")
        timeline.stop()
        timeline.leave(["allreduce.0"])
    assert len(caplog.messages) == 2
    assert all(
        re.search("/dev/full was stopped early: .*No space", line) for line in caplog.messages
    )


def test_the_package_needs_no_torch() -> None:
    """Nor does `arrays`. Only names of the torch API import torch."""
    text = (
        "import sys, reducer_client.horovod as hvd, reducer_client.horovod.arrays\n"
        "assert 'torch' not in sys.modules\n"
        "try: hvd.no_such_name\n"
        "except AttributeError: pass\n"
        "assert 'torch' not in sys.modules\n"
        "import reducer_client.horovod.torch as whole\n"
        "assert all(getattr(whole, name) is getattr(hvd, name) for name in hvd.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", text], env=environment(), check=True, timeout=60)
