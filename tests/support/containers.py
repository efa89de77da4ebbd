"""Builds images and runs containers without a daemon, by buildah, podman and runc.

They have their own storage below build/container, and a base image that debootstrap makes from the
machine's own distribution. They use no registry.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.cluster import ROOT

PLACE = ROOT / "build" / "container"
STORAGE = ("--root", f"{PLACE}/storage", "--runroot", f"{PLACE}/run")
BASE = "localhost/reducer-test-base"
TOOLS = ("apt-cache", "buildah", "catatonit", "debootstrap", "iptables", "podman", "runc")
_TIMEOUT = 900.0
# Settings that work without systemd, without a tun device, and without raising limits.
_CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
helper_binaries_dir = ["/usr/lib/podman", "/usr/libexec/podman"]
"""


def unavailable() -> str:
    """Why no image can be built here; "" if images can be built."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"missing: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "building and running images takes root"
    mounts = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    return "" if mounts.returncode == 0 else f"this root may not mount: {mounts.stderr.decode()}"


def tool(
    *command: str | Path, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with this module's configuration and, for buildah and podman, its storage.

    Raises AssertionError with the program's output if the program fails.
    """
    name, *arguments = map(str, command)
    if name in ("buildah", "podman"):
        arguments = [*STORAGE, *arguments]
    done = subprocess.run(
        [name, *arguments],
        env={**os.environ, "CONTAINERS_CONF": str(_config()), **variables},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    said = f"{' '.join([name, *arguments])}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not check or done.returncode == 0, said
    return done


def _config() -> Path:
    PLACE.mkdir(parents=True, exist_ok=True)
    path = PLACE / "containers.conf"
    if not path.exists() or path.read_text() != _CONFIG:  # another program may be reading the file
        path.write_text(_CONFIG)
    return path


def base_image() -> str:
    """The name of a minimal image of this machine's distribution; made once."""
    return distribution(BASE, _own_release())


def distribution(image: str, release: str, *packages: str) -> str:
    """Make an image of a release of this machine's distribution, unless there is one; its name."""
    if tool("podman", "image", "exists", image, check=False).returncode:
        tree = PLACE / release
        shutil.rmtree(tree, ignore_errors=True)
        include = [f"--include={','.join(packages)}"] if packages else []
        scripts = Path("/usr/share/debootstrap/scripts")
        newer = () if (scripts / release).exists() else (scripts / "sid",)
        tool("debootstrap", "--variant=minbase", *include, release, tree, _mirror(), *newer)
        for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(tree / waste)
        name = tool("buildah", "from", "scratch").stdout.strip()
        tool("buildah", "add", "--quiet", name, tree, "/")
        tool("buildah", "commit", "--quiet", "--rm", name, image)
        shutil.rmtree(tree)
    return image


def _own_release() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _mirror() -> str:
    """The package mirror of this machine."""
    found = tool("apt-cache", "policy").stdout
    release = _own_release()
    match = re.search(rf"\d (https?://\S+) {release}/main", found)
    assert match, f"no mirror of {release} in apt's sources:\n{found}"
    return match[1]


@functools.cache
def wheelhouse() -> Path:
    """A folder with all wheels that an image needs besides ours, for the base image's Python.

    The wheels are fetched with pip's settings of this machine, so that no image needs these
    settings.
    """
    shown = tool("apt-cache", "show", "--no-all-versions", "python3").stdout
    match = re.search(r"^Version: (3\.\d+)", shown, re.M)
    assert match, f"apt has no python3:\n{shown}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    return download(match[1], PLACE / "wheels", *wanted)


def download(python: str, folder: Path, *wanted: str) -> Path:
    """Fetch the wheels of packages and of what they need, for a version of Python; the folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    command += ["--python-version", python, "--dest", str(folder)]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--find-links", str(folder)]
    tool(*command, *wanted)
    return folder


def build(name: str, file: Path, base: str, **arguments: str) -> str:
    """Build the image of one of our Dockerfiles; layers of an earlier build are reused."""
    wheels = wheelhouse()
    arguments |= {"BASE": base, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheelhouse"}
    tool(
        "buildah", "bud", "--layers", "--quiet", "--isolation", "chroot", "--network", "host",
        "--format", "docker", "--volume", f"{wheels}:/wheelhouse:ro", "--tag", name,
        *[f"--build-arg={key}={value}" for key, value in arguments.items()],
        "--file", file, ROOT,
    )  # fmt: skip
    return name


class Container:
    """A running container; the context manager removes it."""

    def __init__(self, image: str, *command: str, options: Iterable[str] = ()) -> None:
        started = tool("podman", "run", "--detach", *options, image, *command)
        self.id = started.stdout.strip()

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(tool("podman", "inspect", self.id).stdout)[0]
        return found

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return tool("podman", "exec", self.id, *command, check=False)

    def published(self, port: int) -> str:
        """The address outside the container for a port inside."""
        return tool("podman", "port", self.id, str(port)).stdout.strip()

    @property
    def log(self) -> str:
        done = tool("podman", "logs", self.id)
        return done.stdout + done.stderr

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log)
        tool("podman", "rm", "--force", "--time", "1", self.id)
