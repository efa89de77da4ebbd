"""What overlaps in the traces of `bench.training --trace`: computation, copies, network.

    python -m bench.training.overlap FOLDER --plot overlap.png

A folder has one trace of torch's profiler for each contender, of rank 0, and the client's timelines
of all ranks. Both have the wall clock. The *spans* of a contender are in seconds since its first
step:

kernels
    Kernels of the device, without NCCL's. None on a CPU.
out, back
    Copies from the device to the host, and from the host to the device.
network
    From the moment a round of the reducers has been queued until its result has arrived, by the
    timeline of rank 0; NCCL's kernels. For gloo nothing is known.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEP = "bench.step"  # the name of a step in a trace
SUFFIX = ".trace.json.gz"
KERNELS, OUT, NETWORK, BACK = "kernels", "out", "network", "back"
KINDS = (KERNELS, OUT, NETWORK, BACK)
# Phases of the client's timeline in which bytes of a round are on their way.
_PHASES = ("sending", "waiting", "receiving")
_HEAD = ("", "step ms", "kernels", OUT, NETWORK, BACK, "moving", "hidden", "out+net", "net+back")

Span = tuple[float, float]
Event = dict[str, Any]


@dataclass(frozen=True)
class Spans:
    """The spans of one contender, by kind; each kind's are disjoint and in order."""

    name: str
    steps: list[Span]
    of: dict[str, list[Span]]

    def seconds(self, *kinds: str) -> float:
        """Seconds in which something of one of the kinds happens."""
        return _length(union(span for kind in kinds for span in self.of[kind]))

    def both(self, first: Sequence[str], second: Sequence[str]) -> float:
        """Seconds in which something of the first kinds and something of the second happens."""
        return self.seconds(*first) + self.seconds(*second) - self.seconds(*first, *second)


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as disjoint spans in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def read(folder: Path) -> list[Spans]:
    """The spans of each contender. Raises ValueError for a folder without traces."""
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise ValueError(f"{folder}: no {SUFFIX} in it; run bench.training --trace {folder}")
    rounds = [s for path in sorted(folder.glob("*-rank0-*.json")) for s in _rounds(path)]
    return [_spans(path, rounds) for path in paths]


def format_spans(folder: Path) -> str:
    """A table: milliseconds of a step, and how much of them overlaps. Raises ValueError."""
    found = read(folder)
    cells = [_HEAD, *(_cells(spans) for spans in found)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(_HEAD))]
    text = [
        "Milliseconds of a traced step of rank 0. moving: out, network or back. hidden: the share",
        "of moving beside kernels. out+net, net+back: both at once.",
        "",
    ]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        text.append("  ".join((row[0].ljust(widths[0]), *rest)))
    if not any(spans.of[KERNELS] for spans in found):
        text.append("\nNo kernel in the traces: no GPU, or the profiler may not see it.")
    return "\n".join(text)


def _cells(spans: Spans) -> tuple[str, ...]:
    moving = (OUT, NETWORK, BACK)
    moved = spans.seconds(*moving)
    hidden = spans.both((KERNELS,), moving) / moved if moved else 0.0
    numbers = (
        _length(spans.steps),
        *(spans.seconds(kind) for kind in KINDS),
        moved,
    )
    shared = (spans.both((OUT,), (NETWORK,)), spans.both((NETWORK,), (BACK,)))
    each = len(spans.steps)
    return (
        spans.name,
        *(f"{1e3 * seconds / each:.1f}" for seconds in numbers),
        f"{hidden:.0%}",
        *(f"{1e3 * seconds / each:.1f}" for seconds in shared),
    )


def _spans(path: Path, rounds: Sequence[Span]) -> Spans:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    base = trace.get("baseTimeNanoseconds", 0) / 1e9
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    # A step is once on the thread, and with a device once more on its stream.
    steps = [e for e in events if e["name"] == STEP and e.get("cat") == "user_annotation"]
    if not steps:
        raise ValueError(f"{path}: no step in it")
    began = min(event["ts"] for event in steps) / 1e6
    ended = max(event["ts"] + event["dur"] for event in steps) / 1e6
    of: dict[str, list[Span]] = {kind: [] for kind in KINDS}
    for event in events:
        if kind := _kind(event):
            of[kind].append(_clipped(event["ts"] / 1e6, event["dur"] / 1e6, began, ended))
    first = base + began
    of[NETWORK] += [
        (max(begin - first, 0.0), min(end, base + ended) - first)
        for begin, end in rounds
        if begin < base + ended and end > first
    ]
    name = path.name.removesuffix(SUFFIX)
    own = [_clipped(e["ts"] / 1e6, e["dur"] / 1e6, began, ended) for e in steps]
    return Spans(name, sorted(own), {kind: union(spans) for kind, spans in of.items()})


def _kind(event: Event) -> str | None:
    category, name = event.get("cat"), event["name"]
    if category == "kernel":
        return NETWORK if name.startswith("nccl") else KERNELS
    if category == "gpu_memcpy":
        return OUT if "DtoH" in name else BACK if "HtoD" in name else None
    return None


def _clipped(begin: float, seconds: float, began: float, ended: float) -> Span:
    return max(begin, began) - began, min(max(begin + seconds, began), ended) - began


def _rounds(path: Path) -> list[Span]:
    """The spans of rounds on the network in a timeline, whose last bracket may be missing."""
    text = path.read_text(encoding="utf-8").rstrip().removesuffix("]").rstrip().removesuffix(",")
    events = [e for e in json.loads(f"{text}]") if e["ph"] == "X" and e["name"] in _PHASES]
    return [(e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events]


def _length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def _draw(found: Sequence[Spans], path: Path) -> None:
    """Write a PNG: a row for each kind of span, one picture for each contender."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.9 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, spans in zip(figure.subplots(len(found), squeeze=False).flat, found, strict=True):
        for row, kind in enumerate(reversed(KINDS)):
            bars = [(1e3 * begin, 1e3 * (end - begin)) for begin, end in spans.of[kind]]
            axes.broken_barh(bars, (row + 0.1, 0.8), color=f"C{row}")
        axes.set_yticks([row + 0.5 for row in range(len(KINDS))], reversed(KINDS))
        axes.vlines([1e3 * end for _, end in spans.steps], 0, len(KINDS), color="black", lw=1)
        axes.set_title(f"{spans.name}: ms since its first traced step", fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training.overlap",
        description="What overlaps in the traces that bench.training --trace has written.",
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="needs matplotlib")
    options = parser.parse_args()
    try:
        print(format_spans(options.folder))
    except ValueError as error:
        sys.exit(f"bench.training.overlap: {error}")
    if options.plot:
        try:
            _draw(read(options.folder), options.plot)
        except ImportError as error:
            print(f"no picture: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
