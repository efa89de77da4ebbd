"""Benchmarks of the parameter server and of its parts.

python -m bench.ps kernels                    # steps of optimizers, native beside NumPy
python -m bench.ps kernels --mib 4 --repeats 9 --json results.jsonl
python -m bench.ps throughput --against ps-lite    # push and pull of a table over loopback
python -m bench.ps failover --against ps-lite      # SIGKILL of servers in the middle of pushes
python -m bench.ps digits                     # trainings whose workers are late, or not in step
"""

from __future__ import annotations

import argparse
import sys

from bench.ps import digits, failover, kernels, throughput


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ps", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    kernels.add_command(commands)
    throughput.add_command(commands)
    failover.add_command(commands)
    digits.add_command(commands)
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
