"""The NCCL plugin from the side of NCCL: its tables, what finds it, and whether it works."""
