"""The congestion control of the hosts of a lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from reducer_tools.netlab import LabError, allow_congestion

DEFAULT = Path("/proc/sys/net/ipv4/tcp_congestion_control")
READ_ONLY = Path("/proc/sys/kernel/ostype")  # root cannot write it either


def test_a_choice_is_allowed_once_and_stays(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text("bbr\n")
    assert allow_congestion("reno", allowed) == "reno"
    assert allow_congestion("reno", allowed) == "reno"
    assert allowed.read_text() == "bbr reno"


def test_a_list_that_nobody_may_write_leaves_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    default = DEFAULT.read_text().strip()
    assert allow_congestion("reno", READ_ONLY) == default
    assert f"all hosts use {default}, the kernel's default: reno" in capsys.readouterr().err


def test_a_name_that_the_kernel_lacks_is_refused() -> None:
    with pytest.raises(LabError, match=r"'pigeon': this kernel has .*reno"):
        allow_congestion("pigeon")
