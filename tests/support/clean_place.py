"""A place without a compiler in which a wheel is installed and used.

The place is a container of the distribution that has the wheel's Python. Where there are no
containers, or no such distribution, it is a fresh venv, and PATH has only this venv.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from deploy.wheels import pythons
from tests.support import containers

DISTRIBUTIONS = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}  # of Debian
_TIMEOUT = 600.0


class CleanPlace:
    """`run` runs a script of sh in a folder of the place, which has the files of `folder`.

    The script finds the interpreter in $PYTHON, and the folders of `readable` by their names in
    further variables.
    """

    def __init__(self, python: str, folder: Path, **readable: Path) -> None:
        self._folder = folder
        self._readable = readable
        self._release = "" if containers.unavailable() or not _is_debian() else python
        self._release = DISTRIBUTIONS.get(self._release, "")
        found = None if self._release else pythons.find(python)
        self._python = str(found or f"/usr/bin/python{python}")
        self.missing = "" if self._release or found else f"no Python {python} here"
        self.name = f"Debian {self._release}" if self._release else f"a venv of {self._python}"

    def prepare(self) -> None:
        """Make the image, which may take minutes."""
        if self._release:
            containers.distribution(self._image, self._release, "python3-venv")

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return self._in_container(script) if self._release else self._in_venv(script)

    @property
    def _image(self) -> str:
        return f"localhost/reducer-clean-{self._release}"

    def _in_container(self, script: str) -> subprocess.CompletedProcess[str]:
        volumes = [f"--volume={path}:/{name}:ro" for name, path in self._readable.items()]
        names = {"PYTHON": self._python, **{name.upper(): f"/{name}" for name in self._readable}}
        return containers.tool(
            "podman", "run", "--rm", "--network=none", f"--volume={self._folder}:/job",
            "--workdir=/job", *volumes, *[f"--env={key}={value}" for key, value in names.items()],
            self._image, "sh", "-c", script, check=False,
        )  # fmt: skip

    def _in_venv(self, script: str) -> subprocess.CompletedProcess[str]:
        names = {"PYTHON": self._python, "PATH": ""}
        names |= {name.upper(): str(path) for name, path in self._readable.items()}
        return subprocess.run(
            ["/bin/sh", "-c", script],
            cwd=self._folder, env=names, timeout=_TIMEOUT,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def _is_debian() -> bool:
    return platform.freedesktop_os_release().get("ID") == "debian"
