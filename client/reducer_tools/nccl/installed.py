"""Finds NCCL and the plugin on this machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reducer_tools.nccl.versions import Version, from_code

PLUGIN = "libnccl-net-reducer.so"
_NCCL = ("libnccl.so.2", "libnccl.so")
_WHEEL = Path("nvidia", "nccl", "lib")
_OURS = Path(__file__).with_name("lib")  # the wheels of `make wheels` have the plugin inside
_PREFIXES = (Path("/usr/local/lib"), Path("/usr/lib"), Path("/usr/lib64"), Path("/lib"))
_LDCONFIG_FOLDERS = "/usr/sbin:/sbin"


class NotFoundError(Exception):
    """A library was not found. The text names the places searched, and what to try."""


@dataclass(frozen=True)
class Nccl:
    """One libnccl on this machine."""

    path: Path
    version: Version


def find_nccl(environment: Mapping[str, str]) -> list[Nccl]:
    """All NCCL libraries, in the order in which PyTorch finds them: the wheel comes first.

    Raises:
        NotFoundError: no library was found, or none could be loaded.
    """
    found, broken = [], []
    for path in _unique(_nccl_paths(environment)):
        try:
            found.append(Nccl(path, _version_of(path)))
        except (OSError, AttributeError) as error:
            broken.append(f"{path} cannot be loaded: {error}")
    if found:
        return found
    looked = [
        f"the wheel nvidia-nccl-cu* of {sys.executable}",
        f"LD_LIBRARY_PATH ({environment.get('LD_LIBRARY_PATH') or 'unset'})",
        "the loader's cache (ldconfig)",
    ]
    text = "; ".join(broken) or f"no {_NCCL[0]}: looked in {', '.join(looked)}"
    raise NotFoundError(
        f"{text}. Run this with the Python that trains, or name NCCL's version: --version 2.27.5"
    )


def find_plugin(environment: Mapping[str, str], given: Path | None = None) -> Path:
    """The path of the plugin: ``given`` (a file or its folder), or the first one found.

    Raises:
        NotFoundError: the plugin is not there.
    """
    if given is not None:
        path = given / PLUGIN if given.is_dir() else given
        if path.name == PLUGIN and path.is_file():
            return path.absolute()
        raise NotFoundError(f"{given}: expected {PLUGIN} or the folder that has it")
    paths = [*on_library_path(PLUGIN, environment), _OURS / PLUGIN, *_cached(PLUGIN)]
    paths += [folder / PLUGIN for folder in _PREFIXES]
    for path in paths:
        if path.is_file():
            return path.absolute()
    raise NotFoundError(
        f"no {PLUGIN}: looked in LD_LIBRARY_PATH "
        f"({environment.get('LD_LIBRARY_PATH') or 'unset'}), {_OURS}, the loader's cache "
        f"(ldconfig), {', '.join(map(str, _PREFIXES))}. Install a wheel of this project, which has "
        "the plugin inside, or build it (nccl_plugin/README.md), or name it: --library FILE"
    )


def is_on_default_path(path: Path) -> bool:
    """Whether the loader finds the library without LD_LIBRARY_PATH."""
    return any(path.samefile(cached) for cached in _cached(path.name) if cached.exists())


def on_library_path(name: str, environment: Mapping[str, str]) -> list[Path]:
    """The files with this name in the folders of LD_LIBRARY_PATH."""
    folders = environment.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    paths = [Path(folder or ".") / name for folder in folders] if any(folders) else []
    return [path for path in paths if path.is_file()]


def _nccl_paths(environment: Mapping[str, str]) -> Iterator[Path]:
    for folder in sys.path:
        yield from (Path(folder) / _WHEEL / name for name in _NCCL)
    for name in _NCCL:
        yield from on_library_path(name, environment)
    for name in _NCCL:
        yield from _cached(name)


def _unique(paths: Iterator[Path]) -> list[Path]:
    seen: dict[str, Path] = {}
    for path in paths:
        if path.is_file():
            seen.setdefault(os.path.realpath(path), path)
    return list(seen.values())


def _cached(name: str) -> list[Path]:
    """The paths in the loader's cache for a library name."""
    ldconfig = shutil.which("ldconfig") or shutil.which("ldconfig", path=_LDCONFIG_FOLDERS)
    if ldconfig is None:
        return []
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    rows = (line.partition(" => ") for line in listing.splitlines())
    return [Path(path) for library, arrow, path in rows if arrow and library.split()[0] == name]


def _version_of(path: Path) -> Version:
    code = ctypes.c_int(0)
    ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(code))
    return from_code(code.value)
