"""Names of keys that tests need."""

from __future__ import annotations

# Two names with one 64-bit FNV-1a: nobody can tell their rounds apart.
SAME_ID = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")
