"""All-reduce of W Python workers over R reducers, beside gloo and Open MPI, every sum checked.

    python -m bench.allreduce --workers 4 --reducers 4 --rate 1gbit --sizes 64M   # needs root
    python -m bench.allreduce --loopback --workers 4 --reducers 1 --sizes 4K,64M

How it measures:

- All contenders live in the same worker processes and take turns; who goes first changes from turn
  to turn. They share hosts, NICs, cores and TCP congestion control.
- The coordinator gives its orders over a Unix socket, so neither they nor the start of a
  measurement use a NIC or a contender. A time is that of the slowest rank from the common start.
- Arrays hold small integers, so every order of summing has the same result, which every rank
  checks, outside the time. Sums are made in place, as DDP makes them.
- Rounds of less than 4 MiB are repeated back to back within a turn; each is a measurement.
"""
