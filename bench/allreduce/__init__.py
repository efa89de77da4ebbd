"""All-reduce of W Python workers over R reducers, compared with gloo and Open MPI.

Every sum is checked.

    python -m bench.allreduce --workers 4 --reducers 4 --rate 1gbit --sizes 64M   # needs root
    python -m bench.allreduce --loopback --workers 4 --reducers 1 --sizes 4K,64M

How it measures:

- All contenders run in the same worker processes and take turns; the order changes from turn to
  turn. They share hosts, NICs, cores and TCP congestion control.
- The coordinator sends orders over a Unix socket, so orders and the start of a measurement use
  neither a NIC nor a contender. A time is measured from the common start to the slowest rank's end.
- Arrays have small integers, so the sum is the same in every order. Every rank checks every sum;
  checks are not timed. Arrays are summed in place, as in DDP.
- Rounds of less than 4 MiB are repeated back to back within a turn; each round is a measurement.
"""
