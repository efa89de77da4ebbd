"""Real NCCL from NVIDIA's wheels: `python -m tests.support.nccl_wheels` gets the missing ones.

A wheel has 150 to 350 MB. Only the library and the headers of each wheel are kept, in a folder
below build/; they are never committed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.support.cluster import ROOT

FOLDER = ROOT / "build" / "nccl_wheels"
LOAD_A_PLUGIN = ("2.18.3", "2.19.3", "2.20.5", "2.21.5")  # load the plugin without a GPU
LATER = ("2.23.4", "2.32.3")
WITH_HEADERS = ("2.18.3", "2.19.3", "2.23.4")  # nccl_net.h of tables 6, 7 and 8
_DISTRIBUTION = "nvidia-nccl-cu12"
_ROOM = 2 << 30  # bytes for a wheel and its files while it is unpacked


def library(version: str) -> Path:
    """The path of libnccl.so.2 of a version; the file may be missing."""
    return FOLDER / version / "lib" / "libnccl.so.2"


def headers(version: str) -> Path:
    return FOLDER / version / "include"


def fetch(version: str) -> None:
    """Download and unpack a wheel; SystemExit if the disk has too little space."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(FOLDER).free) < _ROOM:
        sys.exit(f"{FOLDER}: {free >> 20} MiB are free, NCCL {version} takes {_ROOM >> 20}")
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--no-deps"]
        wanted = f"{_DISTRIBUTION}=={version}"
        subprocess.run([*pip, "--only-binary", ":all:", "-d", scratch, wanted], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("nvidia/nccl/")]
            archive.extractall(scratch, names)
        (Path(scratch) / "nvidia" / "nccl").rename(FOLDER / version)


def main() -> None:
    for version in (*LOAD_A_PLUGIN, *LATER):
        if not library(version).exists():
            print(f"NCCL {version} comes to {FOLDER}", flush=True)
            fetch(version)


if __name__ == "__main__":
    main()
