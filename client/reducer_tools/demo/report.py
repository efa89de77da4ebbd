"""The demo's report: checks of the results, a table, and a picture of the loss curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reducer.columns import aligned
from reducer_tools.demo.messages import RUNS, RunResult

ACCURACY_TOLERANCE = 0.02
_SMOOTHED_STEPS = 15

Results = Mapping[str, Sequence[RunResult]]


def find_faults(results: Results) -> list[str]:
    """The reasons why the demo has failed; empty if it has succeeded."""
    faults = []
    for run, ranks in results.items():
        digests = {result.digest for result in ranks}
        if len(digests) != 1:
            faults.append(f"{run}: the ranks hold {len(digests)} different sets of parameters")
    ours, theirs = (results[run][0].accuracy for run in RUNS)
    if ours < theirs - ACCURACY_TOLERANCE:
        faults.append(f"accuracy {ours:.1%} over the reducers, {theirs:.1%} over gloo")
    return faults


def format_table(results: Results) -> str:
    """An aligned table with one line for each run."""
    head = ("run", "loss", "accuracy", "gradients", "seconds", "last most often")
    rows = [head, *(_row(results[run]) for run in RUNS)]
    rules = tuple("-" * max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(aligned([head, rules, *rows[1:]], left=(0,)))


def draw_losses(results: Results, path: Path) -> None:
    """Draw both loss curves as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    styles: dict[str, dict[str, Any]] = {
        "reducers": {"lw": 4.0, "alpha": 0.45},
        "gloo": {"lw": 1.2, "ls": "--", "c": "black"},
    }
    for run in RUNS:
        curve = _smooth(results[run][0].losses)
        label = f"{run}: {results[run][0].accuracy:.1%} on the test set"
        axes.plot(range(1, len(curve) + 1), curve, label=label, **styles[run])
    axes.set(xlabel="step", ylabel="training loss, mean of the workers", ylim=(0, None))
    axes.set_title(f"Handwritten digits, {len(results[RUNS[0]])} DDP workers")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _row(ranks: Sequence[RunResult]) -> tuple[str, ...]:
    first = ranks[0]
    return (
        first.run,
        f"{_smooth(first.losses)[-1]:.4f}",
        f"{first.accuracy:.1%}",
        f"{first.gradient_bytes / 1e6:.1f} MB",
        f"{max(result.seconds for result in ranks):.1f}",
        _describe_late(first.late),
    )


def _describe_late(late: Mapping[int, int]) -> str:
    total = sum(late.values())
    if not total:
        return "-"
    rank = max(late, key=lambda r: late[r])
    return f"rank {rank} ({late[rank] / total:.0%} of rounds)"


def _smooth(losses: Sequence[float]) -> list[float]:
    """The moving average of the losses, because the losses of single batches are noisy."""
    means = []
    for end in range(1, len(losses) + 1):
        window = losses[max(0, end - _SMOOTHED_STEPS) : end]
        means.append(sum(window) / len(window))
    return means
