"""What is too long for every commit, and is run before a release note.

    python -m tests.nightly                      # all parts; hours, and gigabytes of wheels
    python -m tests.nightly interpreted long     # some

The log of a part is build/nightly/PART.log. The exit status is 1 where a part has failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

from deploy.wheels import pythons

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "nightly"
TORCHES = ("2.8.0", "2.14.1")
UNIT_AND_NET = "python -m pytest -q -n 4 --dist loadfile tests/unit tests/net"
OF_TORCH = (
    "python -m pytest -q -n 4 --dist loadfile tests/unit/torch tests/e2e/test_ddp*.py "
    "tests/e2e/test_fsdp_hook.py tests/e2e/test_process_group*.py"
)


class Part(NamedTuple):
    why: str
    script: str  # of bash


def _beside(name: str, install: str, then: str) -> str:
    """A venv that sees the packages of .venv, but not our own, and what runs in it."""
    venv = PLACE / name
    packages = Path(sysconfig.get_path("purelib"))
    own = venv / packages.relative_to(sys.prefix)
    return f"""
        rm -rf {venv}
        {sys.executable} -m venv {venv}
        echo {packages} > {own}/beside.pth
        export PATH={venv}/bin:$PATH
        {install}
        {then}
    """


def _pip(arguments: str) -> str:
    return f"python -m pip install --quiet --no-build-isolation {arguments}"


def _with_python(python: Path) -> str:
    venv = PLACE / python.name
    return f"""
        make PYTHON={python} VENV={venv} venv
        {venv}/bin/{UNIT_AND_NET}
    """


def _other_pythons() -> list[Path]:
    own = sysconfig.get_python_version()
    others = [pythons.find(version) for version in pythons.VERSIONS if version != own]
    return [python for python in others if python is not None]


def _aarch64() -> str:
    """C and C++ for aarch64, in an emulator; the workers' reducers run on this machine.

    Without the tests of waiting times, which an emulator exceeds, and without TLS, for which the
    emulated system has no OpenSSL.
    """
    folder = ROOT / "build" / "aarch64"
    emulator = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
    worker = f"{' '.join(emulator)} {folder}/engine/tests/engine_worker"
    return f"""
        tests/machine.sh install nightly
        cmake -G Ninja -S reducer/native -B {folder} -DORS_NATIVE_TESTS=ON \\
            -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \\
            -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \\
            -DCMAKE_CROSSCOMPILING_EMULATOR='{";".join(emulator)}' \\
            -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS='-O2 -DNDEBUG' -DCMAKE_CXX_FLAGS='-O2 -DNDEBUG'
        cmake --build {folder}
        ctest --test-dir {folder} --output-on-failure --exclude-regex waiting
        printf '#!/bin/sh\\nexec {worker} "$@"\\n' > {folder}/worker
        chmod +x {folder}/worker
        python -m tests.support.engine_worker {folder}/worker open psk
    """


def parts() -> dict[str, Part]:
    """The parts by name, in the order in which they run."""
    no_native = "REDUCER_NO_NATIVE=1 " + _pip("--no-deps -e .")
    own_folder = f"-C build-dir={PLACE}/interpreted-build -C cmake.define.ORS_MYPYC=OFF"
    return {
        "long": Part("all tests, drawn long", "LONG_TESTS=1 make pytest"),
        "interpreted": Part(
            "unit and net on the interpreted core, with the native kernels and the engine",
            _beside("interpreted", _pip(f"--no-deps {own_folder} -e ."), UNIT_AND_NET),
        ),
        "no-native": Part(
            "unit and net without any compiled part (REDUCER_NO_NATIVE=1)",
            _beside("no-native", no_native, f"{UNIT_AND_NET} -p tests.support.no_native"),
        ),
        **{
            python.name: Part(f"unit and net under {python.name}", _with_python(python))
            for python in _other_pythons()
        },
        **{
            f"torch-{version}": Part(
                f"the hook and the backend under torch {version}",
                _beside(
                    f"torch-{version}",
                    _pip(f"--upgrade torch=={version}") + "\n" + _pip("--no-deps -e ."),
                    OF_TORCH,
                ),
            )
            for version in TORCHES
        },
        "tidy": Part("clang-tidy over C and C++", "make tidy"),
        "sanitize": Part("C and C++ under ASan, UBSan, TSan", "make sanitize"),
        "aarch64": Part("C and C++ on another kind of processor, emulated", _aarch64()),
        "nccl": Part("the plugin under real NCCL", "make test-nccl"),
        "frameworks": Part("Keras, TensorFlow, JAX, Lightning ...", "make test-frameworks"),
        "outside": Part("the tests of others on real reducers", "python -m tests.outside"),
        "soak": Part("a hundredth of the soak", "python -m tests.soak --scale 0.01"),
        "wheels": Part("the wheels, installed where there is no compiler", "make test-wheels"),
        "containers": Part("the images", "make test-container"),
    }


def _run(name: str, part: Part) -> tuple[int, float]:
    log = PLACE / f"{name}.log"
    print(f"{name}: {part.why}", flush=True)
    began = time.monotonic()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with log.open("w") as out:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", part.script],
            cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    *_, last = ["", *filter(None, log.read_text(errors="replace").splitlines())]
    took = time.monotonic() - began
    verdict = f"FAILED, see {log}" if ended.returncode else "passed"
    print(f"    {verdict} after {took:.0f} s: {last}", flush=True)
    return ended.returncode, took


def main() -> int:
    every = parts()
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:16} {part.why}" for name, part in every.items()),
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which; default: all")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(every):
        parser.error(f"no part {', '.join(sorted(unknown))}: expected some of {', '.join(every)}")
    PLACE.mkdir(parents=True, exist_ok=True)
    failed = [name for name in options.parts or every if _run(name, every[name])[0]]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
