"""The demo's report: the table, and the sentences that explain it to a reader who knows nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from reducer.columns import aligned
from reducer.units import format_count
from reducer_tools.demo.case import Case
from reducer_tools.demo.messages import BATCH, BLOCK, RUNS
from reducer_tools.demo.summary import Run

_COLUMNS = 79
_LABEL = 10  # width of the labels before paragraphs
# Above this share of busy cores, the cores delay the packets.
_BUSY = 0.9


def introduce(case: Case) -> str:
    """Say which trainings are about to run, and where."""
    where = (
        f"Each worker and each reducer is on a host with a NIC of {case.rate_in_words}, made of "
        "network namespaces on this machine."
    )
    if case.obstacle:
        where = "All of them are on this machine's loopback."
    return textwrap.fill(
        f"{case.workers} workers train a model with PyTorch (DDP). In each step they sum their "
        f"gradients: over {format_count(case.reducers, 'reducer')}, and in turn over gloo, "
        f"PyTorch's own all-reduce, which is a ring between the workers. {where}",
        _COLUMNS,
    )


def format_table(case: Case, runs: Mapping[str, Run]) -> str:
    """One line for each run."""
    theirs = runs["gloo"].step
    head = ["", "step p50", "samples/s", "speed-up", "loss", "sent by a worker"]
    rows = [head, *(_row(case, run, theirs / run.step) for run in runs.values())]
    if case.obstacle:  # on loopback no interface is a worker's own
        rows = [row[:-1] for row in rows]
    rules = ["-" * max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(aligned([rows[0], rules, *rows[1:]], left=(0,)))


def _row(case: Case, run: Run, speedup: float) -> list[str]:
    return [
        run.name,
        f"{run.step * 1e3:.0f} ms",
        f"{samples_per_second(case, run):,.0f}",
        f"{speedup:.2f}x",
        f"{run.losses[-1]:.4f}",
        f"{run.sent / 1e6:.1f} MB a step",
    ]


def samples_per_second(case: Case, run: Run) -> float:
    """Samples of all workers per second, in steps of median length."""
    return case.workers * BATCH / run.step


def explain(case: Case, runs: Mapping[str, Run], busy: float) -> str:
    """Say what the runs have in common, how much the bytes allow, and that the bits are equal.

    ``busy``: the share of all cores' time that was busy.
    """
    paragraphs = {
        "Compared": _compared(),
        "Loopback" if case.obstacle else "Bytes": (_loopback if case.obstacle else _bytes)(
            case, runs
        ),
        "Bits": _bits(case, runs),
    }
    if busy > _BUSY and not case.obstacle:
        paragraphs["Cores"] = _cores(busy)
    return "\n".join(_paragraph(label, text) for label, text in paragraphs.items())


def _compared() -> str:
    return (
        "One model, trained twice from the same start on the same data. Only the way of the "
        f"gradients differs. The runs take turns of {BLOCK} steps, so both get the same machine."
    )


def _bytes(case: Case, runs: Mapping[str, Run]) -> str:
    few = ""
    if case.reducer_factor > 1:
        few = f", but the NIC of one of these few reducers {case.reducer_factor:g} times"
    return (
        f"A step has {_megabytes(runs)} of gradients. A ring of {case.workers} sends them "
        f"{case.ring_factor:.2f} times through each NIC, 2(n-1)/n. With reducers a worker's NIC "
        f"sends them once{few}. So the bytes allow a speed-up of {case.most_gain:.2f}, less for "
        "the computation, which takes both runs the same time."
    )


def _loopback(case: Case, runs: Mapping[str, Run]) -> str:
    return (
        f"No limited NICs here: {case.obstacle}. Loopback has no NIC to save. The cores carry all "
        f"bytes: for each worker two times {_megabytes(runs)} to the reducers and back, and "
        f"{case.ring_factor:.2f} times in a ring. So gloo usually wins. `sudo make demo` shows "
        "limited NICs. `reducer plan --workers 8 --worker-gbps 100 --reducer-gbps 32` computes the "
        "gain in a cluster."
    )


def _bits(case: Case, runs: Mapping[str, Run]) -> str:
    return (
        f"All {case.workers} workers end with the same parameters, bit for bit. Over reducers "
        f"their hash is {runs[RUNS[0]].digests[0][:16]} in every run on this machine, with any "
        "number of reducers: they add in the order of ranks, whatever arrives first."
    )


def _cores(busy: float) -> str:
    return (
        f"The cores were {busy:.0%} busy, so they delayed the packets. A quiet machine, or a lower "
        "--rate, shows more of the gain."
    )


def _megabytes(runs: Mapping[str, Run]) -> str:
    return f"{runs[RUNS[0]].gradients / 1e6:.1f} MB"


def _paragraph(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_on_hyphens=False,
    )
