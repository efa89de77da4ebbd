"""The hosts of a run: one for each program in a lab, or one host for all programs."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction

from bench.allreduce import mpi
from bench.allreduce.contenders import MPI
from bench.allreduce.options import Options
from bench.fleet import OneHost, Place, ThisMachine
from reducer.shares import best_shares, weights_of
from reducer_tools.netlab import Lab, LabError, Nic


@dataclass(frozen=True)
class Site:
    """The hosts of the programs. ``interface`` carries their traffic.

    ``weights``: the shares of the reducers; none if they are equal.
    """

    place: Place
    workers: list[str]
    reducers: list[str]
    interface: str
    weights: tuple[int, ...] = ()


@contextmanager
def open_site(options: Options) -> Generator[Site]:
    """Hosts that exist inside the block. Raises `LabError` if limited NICs are impossible here."""
    with _one_host(options) if options.loopback else _lab(options) as site:
        yield site


@contextmanager
def _lab(options: Options) -> Generator[Site]:
    rate, reducer_rate = options.rates
    workers = [f"w{rank}" for rank in range(options.workers)]
    reducers = [f"r{slot}" for slot in range(options.reducers)]
    nics = dict.fromkeys(workers, Nic(rate)) | dict.fromkeys(reducers, Nic(reducer_rate))
    if MPI in options.peers:
        nics[mpi.HOST] = Nic()
    with Lab(nics, options.congestion) as lab:
        hosts, weights = _shared(options, workers, reducers) if options.hosted else (reducers, ())
        yield Site(lab, workers, hosts, "eth0", weights)


def _shared(
    options: Options, workers: list[str], dedicated: list[str]
) -> tuple[list[str], tuple[int, ...]]:
    """The hosts of all reducers that get a share, and their weights."""
    rate, dedicated_rate = (Fraction(Nic(r).bytes_per_second or 0) for r in options.rates)
    best = best_shares([rate] * len(workers), [dedicated_rate] * len(dedicated))
    weights = weights_of([*best.dedicated, *best.hosted])
    used = [pair for pair in zip([*dedicated, *workers], weights, strict=True) if pair[1]]
    return [host for host, _ in used], tuple(weight for _, weight in used)


@contextmanager
def _one_host(options: Options) -> Generator[Site]:
    """A namespace, which has its own congestion control, if that is allowed; else this machine."""
    place: Place = ThisMachine()
    with ExitStack() as stack:
        try:
            lab = stack.enter_context(Lab({"host": Nic()}, options.congestion))
            place = OneHost(lab, "host")
        except LabError as error:
            print(f"{error}; with the congestion control of this machine", file=sys.stderr)
        yield Site(place, ["host"] * options.workers, ["host"] * options.reducers, "lo")
