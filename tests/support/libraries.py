"""Small shared libraries, compiled for one test."""

from __future__ import annotations

import subprocess
from pathlib import Path


def compile_library(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def nccl_of_version(path: Path, code: int) -> Path:
    """A libnccl whose only function returns its version."""
    return compile_library(path, f"int ncclGetVersion(int* v) {{ *v = {code}; return 0; }}")
