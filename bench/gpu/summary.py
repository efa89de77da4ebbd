"""The table of a folder that `deploy/gpu-proof.sh` has filled, and what is missing in it.

Exit status 1 if something is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# By group; each part is one line of parts.jsonl, and the last line of a part counts.
PARTS = {
    "install": ("checks", "ready", "plugin"),
    "tests": ("tests-torch", "tests-nccl"),
    "benches": ("copies", "training", "training-nccl", "trace", "overlap", "scaling"),
}
_TABLES = ("copies", "training", "training-nccl", "overlap", "scaling")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.summary", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    lacking = list(missing(folder))
    text = [*_machine(folder), *_parts(folder), *_tables(folder)]
    text += [
        "",
        "Missing:" if lacking else "Nothing is missing.",
        *(f"- {what}" for what in lacking),
    ]
    table = "\n".join(text) + "\n"
    (folder / "table.txt").write_text(table, encoding="utf-8")
    print(table, end="")
    return 1 if lacking else 0


def missing(folder: Path) -> Iterator[str]:
    """What has not run, failed, was out of time, or was skipped."""
    done = _last(folder / "parts.jsonl")
    for group, parts in PARTS.items():
        for part in parts:
            if part not in done:
                yield f"{part}: has not run (gpu-proof.sh {group})"
            elif done[part]["status"] != "ok":
                yield f"{part}: {done[part]['status']}, see {part}.log"
    for path in sorted(folder.glob("tests-*.xml")):
        for reason, count in _skips(path).items():
            yield f"{path.stem}: {count} skipped: {reason}"


def _machine(folder: Path) -> Iterator[str]:
    """What the last check of the machine found."""
    path = folder / "checks.jsonl"
    if not path.exists():
        return
    found = _lines(path)[-1]
    names = (
        "commit",
        "cpu",
        "cores",
        "system",
        "driver",
        "python",
        "torch",
        "cuda",
        "gpus",
        "nccl",
    )
    for name in names:
        if (value := found.get(name)) is not None:
            yield f"{name:8} {'; '.join(value) if isinstance(value, list) else value}"
    if "error" in found:
        yield f"stopped at the first CUDA call: {found['error']}"


def _parts(folder: Path) -> Iterator[str]:
    yield ""
    for part, line in _last(folder / "parts.jsonl").items():
        yield f"{part:14} {line['seconds']:4} s  {line['status']}"
    for path in sorted(folder.glob("tests-*.xml")):
        cases = list(ET.parse(path).iter("testcase"))  # our own file
        kinds = Counter(child.tag for case in cases for child in case)
        failed = kinds["failure"] + kinds["error"]
        passed = len(cases) - failed - kinds["skipped"]
        yield f"{path.stem}: {passed} passed, {failed} failed, {kinds['skipped']} skipped"


def _tables(folder: Path) -> Iterator[str]:
    done = _last(folder / "parts.jsonl")
    for part in _TABLES:
        log = folder / f"{part}.log"
        if part in done and done[part]["status"] == "ok" and log.exists():
            yield from ("", f"== {part} ==", log.read_text(encoding="utf-8").rstrip())


def _skips(path: Path) -> Counter[str]:
    cases = ET.parse(path).iter("skipped")  # our own file
    return Counter(skipped.get("message", "without a reason") for skipped in cases)


def _last(path: Path) -> dict[str, dict[str, Any]]:
    return {line["part"]: line for line in _lines(path)} if path.exists() else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
