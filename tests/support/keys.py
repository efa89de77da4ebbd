"""Names of keys that tests need."""

from __future__ import annotations

# Two names with the same 64-bit FNV-1a: the ids of their keys collide.
SAME_ID = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")
