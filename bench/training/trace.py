"""Writes a trace of some steps of a contender, by torch's profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from bench.training.overlap import STEP, SUFFIX
from bench.training.trainer import Trainer

STEPS = 3


def record(trainer: Trainer, device: str, folder: Path, rank: int) -> None:
    """Train ``STEPS`` steps. All workers call this; rank 0 writes a trace into the folder.

    The profiler slows the steps of rank 0 down, and the other ranks wait for it.
    """
    if rank:
        for _ in range(STEPS):
            trainer.step()
        trainer.finish()
        return
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(activities=activities) as profiler:
        for _ in range(STEPS):
            with record_function(STEP):
                trainer.step()
        trainer.finish()
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"{trainer.contender.name}{SUFFIX}"))
