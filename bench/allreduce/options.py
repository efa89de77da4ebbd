"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.allreduce.cases import QUANTISED, TYPES, Case
from bench.allreduce.contenders import PEERS, REDUCERS
from reducer.units import parse_size
from reducer_tools.netlab import Nic

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """One run: hosts, contenders and cases. Rates are in tc's words, sizes in bytes."""

    workers: int = 4
    reducers: int = 4
    lanes: int = 1
    sizes: tuple[int, ...] = (64 << 20,)
    types: tuple[str, ...] = ("fp32",)
    peers: tuple[str, ...] = ("gloo",)
    repeats: int = 7
    warmup: int = 2
    loopback: bool = False
    hosted: bool = False
    rate: str = "1gbit"
    reducer_rate: str = ""  # empty: as the workers'
    congestion: str = "cubic"
    chunk_table: tuple[tuple[int, int], ...] = ()
    credit: str = ""
    piece: int = 0
    transport: str = ""
    json: Path | None = None

    @property
    def rates(self) -> tuple[str, str]:
        """The rates of the workers' NICs and of the reducers' NICs."""
        return self.rate, self.reducer_rate or self.rate

    @property
    def contenders(self) -> tuple[str, ...]:
        """The contenders in the order in which they connect; reducers come first unless listed."""
        return self.peers if REDUCERS in self.peers else (REDUCERS, *self.peers)

    @property
    def cases(self) -> list[Case]:
        """The cases, by type and then by size."""
        return [Case(size, type_) for type_ in self.types for size in self.sizes]


def parse_options(arguments: list[str] | None = None) -> Options:
    """Parse the command line; a bad argument ends the program with a message."""
    parser = _parser()
    options = Options(**vars(parser.parse_args(arguments)))
    if options.hosted and options.loopback:
        parser.error("--hosted needs limited NICs: leave out --loopback")
    if not options.reducers and not options.hosted:
        parser.error("--reducers 0: expected at least 1, or --hosted")
    quantised = [name for name in options.types if TYPES[name][1] in QUANTISED]
    if quantised and options.contenders != (REDUCERS,):
        parser.error(f"--dtypes {','.join(quantised)}: only reducers have these: --peers none")
    return options


def _parser() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(
        prog="python -m bench.allreduce",
        description="All-reduce over reducers beside gloo and Open MPI. Lists are split at commas.",
    )

    def add(name: str, parse: Callable[[str], object], help: str) -> None:
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=parse, default=value, help=help)

    add("workers", _at_least(1), "ranks, each on a host of its own")
    add("reducers", _at_least(0), "reducers, each on a host of its own")
    parser.add_argument(
        "--hosted",
        action="store_true",
        help="a reducer on each worker's host as well, with the shares that need the least time",
    )
    add("lanes", _at_least(1), "lanes of each reducer")
    add("sizes", _list(_size), "bytes of the arrays: 4K,64K,1M,64M,256M")
    parser.add_argument(
        *("--dtypes", "--types"),
        dest="types",
        type=_list(_one_of(*TYPES)),
        default=default.types,
        help=f"types: {','.join(TYPES)}; fp32-X: fp32 that travels as X; fp32-X-bf16: as X to the "
        "reducers, and back as bf16",
    )
    add("peers", _peers, f"compared with the reducers: {','.join(PEERS)}, or none")
    add("repeats", _at_least(1), "measured turns")
    add("warmup", _at_least(0), "warm-up turns, not measured")
    parser.add_argument(
        "--loopback", action="store_true", help="all on one host without a limited NIC"
    )
    add("rate", _rate, "what each host's NIC sends and receives (tc's words); needs root")
    add("reducer-rate", _rate, "the same for the reducers' hosts, if they differ")
    add("congestion", str, "TCP congestion control of all hosts (root)")
    add("chunk-table", _table, "least bytes of a round and bytes of its chunks: 0:64K,8M:128K")
    add(
        "credit",
        str,
        "--credit of reducer serve: bytes that a worker may have unanswered on a lane",
    )
    add(
        "piece",
        _size,
        "bytes of one request to reducers and plugin, eight in flight; 2M as in NCCL",
    )
    add("transport", str, "of reducer_client.connect")
    add("json", Path, "file that the results are appended to, as JSON lines")
    return parser


def _list(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return lambda text: tuple(parse(part) for part in text.split(",") if part)


def _peers(text: str) -> tuple[str, ...]:
    return () if text == "none" else _list(_one_of(REDUCERS, *PEERS))(text)


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: expected at least {least}")
        return int(text)

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r}: expected one of {', '.join(names)}")
        return text

    return parse


def _size(text: str) -> int:
    """Bytes of a size such as ``4K`` or ``4KiB``."""
    unit = "iB" if text[-1:].upper() in tuple("KMG") else ""
    try:
        size = parse_size(text + unit)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if size < 4 or size % 4:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole elements, a multiple of 4")
    return size


def _rate(text: str) -> str:
    try:
        Nic(text or None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _table(text: str) -> tuple[tuple[int, int], ...]:
    rows = [row.partition(":") for row in text.split(",")]
    return tuple((0 if least == "0" else _size(least), _size(chunk)) for least, _, chunk in rows)
