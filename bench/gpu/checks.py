"""What a machine with a GPU has: driver, torch, NCCL, kernel.

Exit status 3 if there is no CUDA device that torch can use. Imports nothing that has to be built.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.machine import facts

NO_DEVICE = 3
_DRIVER = Path("/proc/driver/nvidia/version")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.checks", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="PATH", help="append one line")
    options = parser.parse_args()
    found: dict[str, Any] = {"what": "machine", **facts(), "system": system(), "driver": driver()}
    _show(found, "cpu", "cores", "system", "driver", "python", "torch")
    try:
        found |= _device()
    except (AssertionError, ImportError, OSError, RuntimeError) as error:
        print(f"stopped at the first CUDA call: {_first_line(error)}", flush=True)
        found["error"] = _first_line(error)
    _keep(options.json, found)
    if "error" in found:
        return NO_DEVICE
    _show(found, "cuda", "gpus", "nccl")
    return 0


def system() -> str:
    """The kernel, and whether it is Linux or a sandbox that acts like it."""
    version = Path("/proc/version").read_text(encoding="utf-8").strip()
    words = f"{version}\n{_output('dmesg')}"
    if "gvisor" in words.lower():
        return f"gVisor, a sandbox with a network of its own: times are not Linux's ({version})"
    return f"Linux {platform.release()}"


def driver() -> str:
    """The version of NVIDIA's kernel driver; none without one."""
    if _DRIVER.exists():
        return _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    found = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found.splitlines()[0] if found else "none"


def _call_driver() -> None:
    """The first CUDA calls, without torch. Raises OSError without a driver, else RuntimeError."""
    library = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    for name, argument in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(count))):
        if result := getattr(library, name)(argument):
            raise RuntimeError(f"{name} returned CUresult {result}")
    if not count.value:
        raise RuntimeError("the driver counts no device")


def _device() -> dict[str, Any]:
    """What the device says. Raises what the driver or torch raise without one."""
    _call_driver()
    import torch

    torch.zeros(1, device="cuda").item()
    devices = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version())) if torch.distributed.is_nccl_available() else None
    return {
        "cuda": torch.version.cuda,
        "gpus": [f"{each.name}, {each.total_memory >> 30} GiB" for each in devices],
        "nccl": version,
        "nccl_wheel": find_spec("nvidia") is not None and find_spec("nvidia.nccl") is not None,
    }


def _output(*command: str) -> str:
    """What a program prints; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _show(found: dict[str, Any], *names: str) -> None:
    for name in names:
        value = found[name]
        text = "; ".join(value) if isinstance(value, list) else value
        print(f"{name:8} {'none' if text is None else text}", flush=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def _keep(path: Path | None, line: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")


if __name__ == "__main__":
    sys.exit(main())
